"""An operation of the API: its route, its body, its answers, and what a disconnect does.

The HTTP routes, the WebSocket's commands and the OpenAPI document are all made from operations. The
decorators `operation` and `lookup` make one from a function; its docstring is the summary in the
document.
"""

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Required, TypedDict, TypeVar, Unpack

import msgspec

from bargein.server.access import Principal, Right
from bargein.server.gateway import LARGE_BYTES, Gateway, Opened
from bargein.server.keys import Kept
from bargein.server.large_json import decode_large
from bargein.server.problems import Code, Problem
from bargein.server.validation_errors import (
    VALUE_CHARACTERS_MAX,
    describe_validation_error,
    no_parameter,
)

B = TypeVar("B", bound=msgspec.Struct)

Body = bytes | bytearray | memoryview
"""A request's JSON. Over HTTP it is a bytearray, emptied as soon as it is decoded. Over a WebSocket
it is a view into the command, so that it is not copied."""

_NAMES = re.compile(r"\{(\w+)\}")

NOTHING_STOPS = "Stops nothing: what was accepted goes on."
IDEMPOTENT_READ = "Nothing: it only reads."


class Reply(msgspec.Struct, frozen=True):
    """`note`, and `session` (the id of a session that the request made), go into the audit log."""

    status: int
    body: msgspec.Struct | None = None
    headers: Mapping[str, str] | None = None
    note: str = ""
    session: str = ""

    def kept(self) -> Kept:
        """Returns the answer as it is sent, without its headers."""
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
        """Raises `Problem` for a parameter that is not known, because it may be misspelt."""
        names = [each.name for each in known]
        for name in self.query:
            if name not in names:
                raise Problem(Code.BAD_REQUEST, no_parameter(name, names))


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter in the query."""

    name: str
    kind: str
    summary: str


class OperationOptions(TypedDict, total=False):
    """Properties of an operation beside its path and body. `replies` has the body of each good
    answer by its status."""

    replies: Required[Mapping[int, type[msgspec.Struct] | None]]
    problems: tuple[Code, ...]
    query: tuple[Parameter, ...]
    while_draining: bool
    audited: bool
    disconnect: str
    need: Right


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """`kept`: the gateway's database keeps the answer, and a second request with the same
    Idempotency-Key gets it again. Other operations take care of repeats themselves. `audited`:
    a request other than a GET goes into the audit log. `need`: what the caller must be allowed to
    do with the session to get a kept answer. The rest is as in `OperationOptions`."""

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
    need: Right = "write"

    @property
    def takes_key(self) -> bool:
        """Whether an Idempotency-Key means something to it."""
        return self.method == "POST" or self.kept

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the parameters in the path."""
        return _names_in(self.path)


@cache
def _names_in(path: str) -> tuple[str, ...]:
    return tuple(_NAMES.findall(path))


def operation(
    method: str, path: str, body: type[B], *, kept: bool = True, **options: Unpack[OperationOptions]
) -> Callable[[Callable[[ApiRequest, B], Awaitable[Reply | Kept]]], Operation]:
    """Makes an operation with a body. An empty body is the same as `{}`."""
    decoder = msgspec.json.Decoder(body)

    def make(function: Callable[[ApiRequest, B], Awaitable[Reply | Kept]]) -> Operation:
        async def run(request: ApiRequest, content: Body) -> Reply | Kept:
            decoded = await decode_soon(decoder, content or b"{}")
            if isinstance(content, bytearray):
                content.clear()
            return await function(request, decoded)

        return Operation(
            **_describe(function),
            method=method,
            path=path,
            body=body,
            run=run,
            kept=kept,
            **options,
        )

    return make


def lookup(
    path: str, *, method: str = "GET", kept: bool = False, **options: Unpack[OperationOptions]
) -> Callable[[Callable[[ApiRequest], Awaitable[Reply]]], Operation]:
    """Makes an operation without a body. It only reads, unless its options say otherwise."""
    reading: OperationOptions = {"while_draining": True, "disconnect": IDEMPOTENT_READ, **options}

    def make(function: Callable[[ApiRequest], Awaitable[Reply]]) -> Operation:
        async def run(request: ApiRequest, content: Body) -> Reply:
            return await function(request)

        return Operation(
            **_describe(function),
            method=method,
            path=path,
            body=None,
            run=run,
            kept=kept,
            **reading,
        )

    return make


async def decode_soon(decoder: msgspec.json.Decoder[B], content: Body) -> B:
    """Decodes as `decode` does. A large body takes several passes of the loop."""
    if len(content) > LARGE_BYTES:
        decoded = await decode_large(decoder, content)
        if decoded is not None:
            return decoded
    return decode(decoder, content)


def decode(decoder: msgspec.json.Decoder[B], content: Body) -> B:
    try:
        return decoder.decode(content)
    except msgspec.ValidationError as error:
        problem = describe_validation_error(error, decoder.type)
        raise Problem(Code.BAD_REQUEST, f"the body is not right: {problem}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Problem(
            Code.BAD_JSON, f"the body is not JSON: {error}; send one JSON object in UTF-8"
        ) from error


class _Description(TypedDict):
    name: str
    summary: str


def _describe(function: Callable[..., object]) -> _Description:
    return {
        "name": function.__name__,
        "summary": " ".join((function.__doc__ or "").split()),
    }
