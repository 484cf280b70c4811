"""One thing that can be asked for: its route, its body, its answers, and what a disconnect does.

The routes, the commands of the WebSocket and the OpenAPI document are all made from these.
"""

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Required, TypedDict, TypeVar, Unpack

import msgspec

from bargein.server.access import Principal, Right
from bargein.server.gateway import Gateway, Opened
from bargein.server.keys import Kept
from bargein.server.problems import Code, Problem
from bargein.server.validation_errors import (
    VALUE_CHARACTERS_MAX,
    describe_validation_error,
    no_parameter,
)

B = TypeVar("B", bound=msgspec.Struct)

Body = bytes | bytearray | memoryview
"""A request's JSON. Over HTTP it is a bytearray, which is emptied when it has been decoded. Over a
WebSocket it is a view into the command, so that it is not copied."""

_NAMES = re.compile(r"\{(\w+)\}")

NOTHING_STOPS = "Stops nothing: what was accepted goes on."
IDEMPOTENT_READ = "Nothing: it only reads."


class Reply(msgspec.Struct, frozen=True):
    """`body` is None for an answer without one. `note` is for the audit log, and so is `session`:
    one that the request has made."""

    status: int
    body: msgspec.Struct | None = None
    headers: Mapping[str, str] | None = None
    note: str = ""
    session: str = ""

    def kept(self) -> Kept:
        """As it goes out, without its headers."""
        body = msgspec.json.encode(self.body) if self.body is not None else b""
        return Kept(self.status, body, note=self.note)


class ApiRequest(msgspec.Struct, frozen=True):
    """One request, from HTTP or a WebSocket."""

    gateway: Gateway
    principal: Principal
    params: Mapping[str, str]
    query: Mapping[str, str]
    key: str | None = None
    address: str = ""

    @property
    def session_id(self) -> str:
        return self.params["session"]

    async def open(self, need: Right = "read") -> Opened:
        return await self.gateway.open(self.principal, self.session_id, need)

    def flag(self, name: str, *, default: bool) -> bool:
        value = self.query.get(name)
        if value is None:
            return default
        if value not in ("true", "false"):
            shown = value[:VALUE_CHARACTERS_MAX]
            raise Problem(Code.BAD_REQUEST, f"?{name}={shown}: say true or false")
        return value == "true"

    def number(self, name: str, *, default: int, least: int, most: int) -> int:
        value = self.query.get(name)
        if value is None:
            return default
        is_number = value.isascii() and value.isdigit() and len(value) < 20
        if not is_number or int(value) < least:
            shown = value[:VALUE_CHARACTERS_MAX]
            raise Problem(Code.BAD_REQUEST, f"?{name}={shown}: give a whole number from {least}")
        return min(int(value), most)

    def refuse_unknown(self, known: "tuple[Parameter, ...]") -> None:
        """A parameter that is misspelt is not passed over in silence."""
        names = [each.name for each in known]
        for name in self.query:
            if name not in names:
                raise Problem(Code.BAD_REQUEST, no_parameter(name, names))


@dataclass(frozen=True, slots=True)
class Parameter:
    """In the query."""

    name: str
    kind: str
    summary: str


class Told(TypedDict, total=False):
    """What the routes and the document are told of an operation beside its path and its body.
    `replies`: the body of each good answer."""

    replies: Required[Mapping[int, type[msgspec.Struct] | None]]
    problems: tuple[Code, ...]
    query: tuple[Parameter, ...]
    while_draining: bool
    audited: bool
    disconnect: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """`kept`: a second request with the same Idempotency-Key gets the first one's answer, from the
    gateway's own file; the others see to it themselves. `audited`: a request that is not a GET
    goes into the audit log. The rest is as in `Told`."""

    name: str
    method: str
    path: str
    summary: str
    body: type[msgspec.Struct] | None
    run: Callable[[ApiRequest, Body], Awaitable[Reply | Kept]]
    kept: bool
    replies: Mapping[int, type[msgspec.Struct] | None]
    problems: tuple[Code, ...] = ()
    query: tuple[Parameter, ...] = ()
    while_draining: bool = False
    audited: bool = True
    disconnect: str = NOTHING_STOPS

    @property
    def takes_key(self) -> bool:
        """Whether an Idempotency-Key means something to it."""
        return self.method == "POST" or self.kept

    @property
    def names(self) -> tuple[str, ...]:
        """What stands in the path."""
        return _names_in(self.path)


@cache
def _names_in(path: str) -> tuple[str, ...]:
    return tuple(_NAMES.findall(path))


def operation(
    method: str, path: str, body: type[B], *, kept: bool = True, **told: Unpack[Told]
) -> Callable[[Callable[[ApiRequest, B], Awaitable[Reply | Kept]]], Operation]:
    """With a body. An empty one is the same as `{}`."""
    decoder = msgspec.json.Decoder(body)

    def make(function: Callable[[ApiRequest, B], Awaitable[Reply | Kept]]) -> Operation:
        async def run(request: ApiRequest, content: Body) -> Reply | Kept:
            decoded = decode(decoder, content or b"{}")
            if isinstance(content, bytearray):
                content.clear()
            return await function(request, decoded)

        return Operation(
            **_said_by(function),
            method=method,
            path=path,
            body=body,
            run=run,
            kept=kept,
            **told,
        )

    return make


def lookup(
    path: str, *, method: str = "GET", kept: bool = False, **told: Unpack[Told]
) -> Callable[[Callable[[ApiRequest], Awaitable[Reply]]], Operation]:
    """Without a body. It only reads, unless told otherwise."""
    reading: Told = {"while_draining": True, "disconnect": IDEMPOTENT_READ, **told}

    def make(function: Callable[[ApiRequest], Awaitable[Reply]]) -> Operation:
        async def run(request: ApiRequest, content: Body) -> Reply:
            return await function(request)

        return Operation(
            **_said_by(function),
            method=method,
            path=path,
            body=None,
            run=run,
            kept=kept,
            **reading,
        )

    return make


def decode(decoder: msgspec.json.Decoder[B], content: Body) -> B:
    try:
        return decoder.decode(content)
    except msgspec.ValidationError as error:
        told = describe_validation_error(error, decoder.type)
        raise Problem(Code.BAD_REQUEST, f"the body is not right: {told}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Problem(
            Code.BAD_JSON, f"the body is not JSON: {error}; send one JSON object in UTF-8"
        ) from error


class _Said(TypedDict):
    name: str
    summary: str


def _said_by(function: Callable[..., object]) -> _Said:
    return {
        "name": function.__name__,
        "summary": " ".join((function.__doc__ or "").split()),
    }
