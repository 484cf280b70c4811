"""The model server: speaks the OpenAI chat protocol on loopback, plays scripts, and sees who goes.

`python -m bench.interruptbench.server` prints its port as the first line of JSON, takes scripts
as lines of JSON on standard input, and tells each thing that happens as a line on standard
output, with its time by CLOCK_MONOTONIC, which all processes of a machine share:

    request     came, whole: which script and step, which marks are in it, what is wrong with it
    first_part  the first part of an answer was written
    finished    the answer was written to its end
    gone        the client closed the connection while its answer was not finished

It ends when its standard input does.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from typing import cast

import msgspec

from bench.interruptbench.script import (
    Message,
    Script,
    Step,
    answer_text,
    find_script,
    transcript_problems,
    words_of,
)

HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-cache\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
)
MODEL = "interruptbench"
UNKNOWN = Step(parts=1)


class StreamOptions(msgspec.Struct, frozen=True):
    include_usage: bool = False


class Body(msgspec.Struct, frozen=True):
    messages: list[Message]
    stream: bool | None = False
    stream_options: StreamOptions | None = None


def tell(event: str, request: int, **more: object) -> None:
    line = {"event": event, "request": request, "at": time.monotonic(), **more}
    sys.stdout.buffer.write(msgspec.json.encode(line) + b"\n")
    sys.stdout.buffer.flush()


class ModelServer:
    def __init__(self) -> None:
        self.scripts: dict[str, Script] = {}
        self.requests = 0

    def connect(self) -> Connection:
        return Connection(self)


class Connection(asyncio.Protocol):
    """One client's connection: requests one after another, each answered by a task."""

    def __init__(self, server: ModelServer) -> None:
        self._server = server
        self._received = b""
        self._task: asyncio.Task[None] | None = None
        self._request: int | None = None
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._received += data
        if self._task is None:
            self._take_request()

    def _take_request(self) -> None:
        head, separator, rest = self._received.partition(b"\r\n\r\n")
        if not separator:
            return
        line, *fields = head.decode("latin-1").split("\r\n")
        headers = {
            name.lower(): value.strip() for name, _, value in (f.partition(":") for f in fields)
        }
        size = int(headers.get("content-length", "0"))
        if len(rest) < size:
            return
        self._received = rest[size:]
        method, path, _ = line.split(" ")
        if method == "POST" and path.endswith("/chat/completions"):
            body = msgspec.json.decode(rest[:size], type=Body)
            self._server.requests += 1
            self._request = self._server.requests
            self._task = asyncio.get_running_loop().create_task(self._answer(self._request, body))
        elif path.endswith("/models"):
            self._write_json(200, {"object": "list", "data": [{"id": MODEL, "object": "model"}]})
        else:
            self._write_json(404, {"error": {"message": f"no {path}", "type": "not_found"}})

    async def _answer(self, request: int, body: Body) -> None:
        name, number = find_script(body.messages)
        script = self._server.scripts.get(name)
        problems = transcript_problems(body.messages)
        tell(
            "request", request, script=name, step=number, stream=bool(body.stream),
            words=words_of(body.messages), problems=problems, known=script is not None,
        )  # fmt: skip
        if problems and script is not None and script.strict:
            self._write_json(
                400, {"error": {"message": problems[0], "type": "invalid_request_error"}}
            )
        else:
            step = script.step(number) if script is not None else UNKNOWN
            await (self._stream if body.stream else self._whole)(request, name, step, body)
        tell("finished", request)
        self._request = self._task = None
        self._take_request()

    async def _stream(self, request: int, name: str, step: Step, body: Body) -> None:
        await _pause(step.before_headers_s)
        self._transport.write(HEAD)
        await _pause(step.after_headers_s)
        first = True
        async for delta in _deltas(request, name, step):
            self._event(request, {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
            if first:
                tell("first_part", request)
                first = False
        reason = "tool_calls" if step.calls else "stop"
        self._event(request, {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})
        if body.stream_options is not None and body.stream_options.include_usage:
            self._event(request, {"choices": [], "usage": _usage(step)})
        self._chunk(b"data: [DONE]\n\n")
        self._transport.write(b"0\r\n\r\n")

    async def _whole(self, request: int, name: str, step: Step, body: Body) -> None:
        await _pause(step.before_headers_s + step.after_headers_s)
        text, calls = "", list[object]()
        async for delta in _deltas(request, name, step):
            if not text:
                tell("first_part", request)
            text += str(delta.get("content", ""))
            calls += cast(list[object], delta.get("tool_calls", []))
        message = {"role": "assistant", "content": text, **({"tool_calls": calls} if calls else {})}
        reason = "tool_calls" if step.calls else "stop"
        choice = {"index": 0, "message": message, "finish_reason": reason, "logprobs": None}
        self._write_json(
            200,
            {**_envelope(request, "chat.completion"), "choices": [choice], "usage": _usage(step)},
        )

    def _event(self, request: int, event: dict[str, object]) -> None:
        whole = {**_envelope(request, "chat.completion.chunk"), **event}
        self._chunk(b"data: " + msgspec.json.encode(whole) + b"\n\n")

    def _chunk(self, data: bytes) -> None:
        self._transport.write(b"%x\r\n%b\r\n" % (len(data), data))

    def _write_json(self, status: int, value: object) -> None:
        body = msgspec.json.encode(value)
        head = f"HTTP/1.1 {status} -\r\nContent-Type: application/json\r\n"
        self._transport.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)

    def eof_received(self) -> bool:
        self._client_left()
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self._client_left()

    def _client_left(self) -> None:
        if self._task is not None:
            if self._request is not None:
                tell("gone", self._request)
            self._request = None
            self._task.cancel()
            self._task = None


async def _deltas(request: int, name: str, step: Step) -> AsyncIterator[dict[str, object]]:
    """The parts of an answer, at the script's pace; the last one carries the script's name."""
    due = asyncio.get_running_loop().time()
    for number in range(step.parts):
        last = number == step.parts - 1
        text = answer_text(name) if last and not step.calls else f"word{number} "
        role = {} if number else {"role": "assistant"}
        yield {**role, "content": text}
        due += step.pace_s
        if not last:
            await _pause(due - asyncio.get_running_loop().time())
    for index, call in enumerate(step.calls):
        arguments = msgspec.json.encode(call.arguments).decode()
        function = {"name": call.name, "arguments": arguments}
        identity = f"call_{request}_{index}"
        yield {
            "tool_calls": [
                {"index": index, "id": identity, "type": "function", "function": function}
            ]
        }


async def _pause(seconds: float) -> None:
    if seconds > 0:
        await asyncio.sleep(seconds)


def _envelope(request: int, kind: str) -> dict[str, object]:
    return {"id": f"chatcmpl-{request}", "object": kind, "created": 1, "model": MODEL}


def _usage(step: Step) -> dict[str, int]:
    return {"prompt_tokens": 10, "completion_tokens": step.parts, "total_tokens": 10 + step.parts}


async def main() -> None:
    loop = asyncio.get_running_loop()
    server = ModelServer()
    listening = await loop.create_server(server.connect, "127.0.0.1", 0, backlog=1024)
    tell("listening", 0, port=listening.sockets[0].getsockname()[1])
    lines = asyncio.StreamReader(limit=2**24)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin.buffer)
    while line := await lines.readline():
        script = msgspec.json.decode(line, type=Script)
        server.scripts[script.id] = script
        tell("script", 0, script=script.id)


if __name__ == "__main__":
    asyncio.run(main())
