"""The zoo: everything that providers, and what stands between, have been seen to do.

Each animal is a function from a dialect to a reply. With `choose_by_path` one server shows them
all: the first folder of a request's path names the animal.
"""

import argparse
import asyncio
import gzip
import textwrap
from collections.abc import Callable, Mapping

from bargein.contracts.model import CallPart, EndPart, Part, StopReason, TextPart, Usage, UsagePart
from bargein.testing.fault_answers import HELLO, dialect_of, event, events_of
from bargein.testing.fault_connection import visits_json
from bargein.testing.fault_server import FaultServer
from bargein.testing.fault_steps import (
    Body,
    Drip,
    Drop,
    Gate,
    Hang,
    Head,
    Pause,
    Reply,
    Request,
    Reset,
    Stall,
    Step,
)

_JSON = {"Content-Type": "application/json"}
_USAGE = UsagePart(Usage(input_tokens=11, output_tokens=3))
_CALLS_END = EndPart(StopReason.TOOL_CALLS)


def whole(dialect: str, *parts: Part) -> Reply:
    return [Head(), Body(b"".join(events_of(dialect, parts or HELLO)))]


def refusal(
    status: int, message: str, *, kind: str = "", headers: Mapping[str, str] | None = None
) -> Reply:
    error = {"message": message, "type": kind, "code": kind or None}
    body = event({"error": error}).removeprefix(b"data: ").strip()
    return [Head(status, {**_JSON, **(headers or {})}), Body(body)]


def _cut_in_half(dialect: str) -> bytes:
    events = events_of(dialect)
    return b"".join(events[: len(events) // 2])


def _invalid_arguments(dialect: str) -> Reply:
    call = CallPart(0, "call_1", "read", ""), CallPart(0, arguments='{"path": "a')
    return whole(dialect, *call, _USAGE, _CALLS_END)


def _parallel_calls(dialect: str) -> Reply:
    first = CallPart(0, "call_1", "read", ""), CallPart(0, arguments='{"path":"a"}')
    second = CallPart(1, "call_2", "read", ""), CallPart(1, arguments='{"path":"b"}')
    return whole(dialect, *first, *second, _USAGE, _CALLS_END)


def _split_arguments(dialect: str) -> Reply:
    letters = [CallPart(0, arguments=letter) for letter in '{"path":"ö"}']
    return whole(dialect, CallPart(0, "call_1", "read", ""), *letters, _USAGE, _CALLS_END)


def _split_utf8(dialect: str) -> Reply:
    said = TextPart("grüße, 世界 🌍"), _USAGE, EndPart(StopReason.END)
    return [Head(), Body(b"".join(events_of(dialect, said)), size=1)]


def _gzip(dialect: str) -> Reply:
    head = Head(200, {"Content-Type": "text/event-stream", "Content-Encoding": "gzip"})
    return [head, Body(gzip.compress(b"".join(events_of(dialect))))]


def _without_end_mark(dialect: str) -> Reply:
    events = events_of(dialect)
    if dialect in ("openai", "anthropic"):
        events = events[:-1]
    return [Head(), Body(b"".join(events))]


def _paced(dialect: str) -> Reply:
    """Sends 50 parts a second as long as the client stays."""
    head, part = events_of(dialect, (TextPart("word "), EndPart(StopReason.END)))[:2]
    steps: list[Step] = [Head(), Body(head)]
    steps += [Body(part), Pause(0.02)] * 5000
    return steps


ZOO: Mapping[str, Callable[[str], Reply]] = {
    "ok": whole,
    "401": lambda _: refusal(401, "Incorrect API key provided.", kind="invalid_api_key"),
    "404": lambda _: refusal(404, "The model `m` does not exist.", kind="model_not_found"),
    "408": lambda _: refusal(408, "Request timeout."),
    "429": lambda _: refusal(
        429, "Rate limit reached.", kind="rate_limit_exceeded", headers={"Retry-After": "1"}
    ),
    "500": lambda _: refusal(500, "The server had an error.", kind="server_error"),
    "529": lambda _: refusal(529, "Overloaded", kind="overloaded_error"),
    "redirect": lambda _: [Head(307, {"Location": "http://127.0.0.1:9/elsewhere"})],
    "drop": lambda dialect: [Head(), Body(_cut_in_half(dialect)), Drop()],
    "reset": lambda dialect: [Head(), Body(_cut_in_half(dialect)), Reset()],
    "drop-before-headers": lambda _: [Drop()],
    "slow-loris": lambda _: [Head(), Drip(b"data: {" + b" " * 1000, every_s=0.01)],
    "silent-before-headers": lambda _: [Hang()],
    "silent-after-headers": lambda _: [Head(), Hang()],
    "silent-mid-answer": lambda dialect: [Head(), Body(_cut_in_half(dialect)), Hang()],
    "silent-in-error-body": lambda _: [Head(500, _JSON), Body(b'{"error": '), Hang()],
    "stall": lambda _: [Stall()],
    "malformed-json": lambda _: [Head(), Body(b'data: {"choices": [{]}\n\n'), Hang()],
    "split-utf8": _split_utf8,
    "split-arguments": _split_arguments,
    "invalid-arguments": _invalid_arguments,
    "parallel-calls": _parallel_calls,
    "usage-at-end": whole,
    "missing-done": _without_end_mark,
    "wrong-content-type": lambda _: [
        Head(200, {"Content-Type": "text/html"}),
        Body(b"<html><body>Welcome to the hotel network</body></html>"),
    ],
    "endless-line": lambda _: [Head(), *[Body(b"data: " + b"x" * 65536)] * 1000, Hang()],
    "gzip": _gzip,
    "gated": lambda dialect: [Head(), Body(_cut_in_half(dialect)), Gate("rest"), Hang()],
    "paced": _paced,
}


def choose_by_path(request: Request) -> Reply:
    """Answers `/ANIMAL/v1/chat/completions` with that animal."""
    animal = request.path.split("/")[1]
    if animal not in ZOO:
        return refusal(404, f"no animal {animal!r} in the zoo; there are {', '.join(ZOO)}")
    return ZOO[animal](dialect_of(request.path))


def run_zoo(arguments: list[str]) -> int:
    """Serves the zoo until killed: `python -m bargein.testing.fault_server [PORT]`.

    Prints its address first. `GET /visits` returns the record.
    """
    port = _port_of(arguments)

    async def main() -> None:
        def choose(request: Request) -> Reply:
            if request.path == "/visits":
                return [Head(200, _JSON), Body(visits_json(server.visits))]
            return choose_by_path(request)

        server = FaultServer(choose, port=port)
        async with server:
            print(server.url, flush=True)  # noqa: T201 - how a parent process learns the port
            await asyncio.get_running_loop().create_future()

    asyncio.run(main())
    return 0


def _port_of(arguments: list[str]) -> int:
    animals = textwrap.fill(", ".join(ZOO), 78, break_on_hyphens=False)
    parser = argparse.ArgumentParser(
        prog="python -m bargein.testing.fault_server",
        description="A model server that misbehaves in every known way.",
        epilog="With OPENAI_BASE_URL=http://127.0.0.1:PORT/ANIMAL/v1 that animal answers, one of\n"
        f"{animals}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("port", nargs="?", type=_port, default=0, help="default: any free port")
    port: int = parser.parse_args(arguments).port
    return port


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port: give a number from 0 to 65535")
    return int(text)
