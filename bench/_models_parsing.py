"""What parsing one event costs, against the official SDK on the same bytes."""

from __future__ import annotations

import asyncio
import subprocess
import tempfile
import time
import venv
from collections.abc import Sequence
from pathlib import Path

from bargein.cancel import CancelSource, Token
from bargein.contracts.model import ModelRequest, Part, TextPart, Usage
from bargein.models.dialects.chat import ChatDialect
from bargein.models.endpoint import Attempt
from bargein.models.retrying import RetryingModel
from bargein.net.sse import EventParser
from bench.measure import Report, Samples

HERE = Path(__file__).parent
EVENTS = 4000
ROUNDS = 9


class BytesEndpoint:
    """An endpoint that reads from memory: all of our own path, and nothing of the network."""

    name = "memory"
    context_tokens = None
    price = None

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self._pieces = pieces

    def attempt(self, request: ModelRequest, token: Token) -> Attempt:
        return _BytesAttempt(self._pieces)

    async def aclose(self) -> None:
        pass


class _BytesAttempt:
    usage = Usage()

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self._pieces = iter(pieces)
        self._parser = EventParser()
        self._decoder = ChatDialect().decoder()

    async def read(self) -> Sequence[Part]:
        out: list[Part] = []
        while not out:
            for data in self._parser.feed(next(self._pieces)):
                self._decoder.feed(data, out)
            if self._decoder.done:
                self._decoder.end(out)
        return out

    async def aclose(self) -> None:
        pass


async def parse_ours(pieces: Sequence[bytes]) -> tuple[float, int]:
    model = RetryingModel([BytesEndpoint(pieces)])
    count = 0
    start_s = time.perf_counter()
    async with model.open(ModelRequest(()), CancelSource("request").token) as stream:
        async for part in stream:
            if isinstance(part, TextPart):
                count += 1
    return time.perf_counter() - start_s, count


def recorded() -> bytes:
    """A stream as OpenAI sends it: long chunks with short words in them."""
    head = '"id":"chatcmpl-B9MBs8CjcvOU2jLn4n570S5qMJKcT","object":"chat.completion.chunk",'
    head += '"created":1741569952,"model":"gpt-5-mini-2025-08-07","service_tier":"default",'
    head += '"system_fingerprint":"fp_44709d6fcb"'
    choice = '{{"index":0,"delta":{{"content":"word{n} "}},"logprobs":null,"finish_reason":null}}'
    events = [f'data: {{{head},"choices":[{choice.format(n=n)}]}}\n\n' for n in range(EVENTS)]
    events.append('data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n')
    return "".join([*events, "data: [DONE]\n\n"]).encode()


def cut(data: bytes, size: int) -> list[bytes]:
    if size:
        return [data[at : at + size] for at in range(0, len(data), size)]
    return [event + b"\n\n" for event in data.split(b"\n\n") if event]


def sdk_python() -> str:
    """An environment with the official SDK in it, made at the first run."""
    folder = Path(tempfile.gettempdir()) / "bargein-bench-openai"
    python = folder / "bin" / "python"
    if not (folder / "ready").exists():
        venv.create(folder, with_pip=True, clear=True)
        command = [str(python), "-m", "pip", "install", "-q", "openai"]
        subprocess.run(command, check=True, capture_output=True)
        (folder / "ready").touch()
    return str(python)


def measure_parsing(report: Report) -> None:
    try:
        python = sdk_python()
    except (OSError, subprocess.CalledProcessError) as error:
        report.note(f"Parsing was not measured: the openai SDK cannot be installed ({error}).")
        return
    data = recorded()
    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        command = [python, str(HERE / "_models_openai_sdk.py"), file.name]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as child:
            assert child.stdin is not None
            assert child.stdout is not None
            version = child.stdout.readline().strip()
            for size, words in ((0, "an event a piece"), (16384, "16 KiB a piece")):
                samples: Samples = {"sdk": [], "ours": []}
                for number in range(ROUNDS + 1):
                    child.stdin.write(f"{size}\n")
                    child.stdin.flush()
                    sdk_s, sdk_count = child.stdout.readline().split()
                    ours_s, count = asyncio.run(parse_ours(cut(data, size)))
                    if int(sdk_count) != EVENTS or count != EVENTS:
                        report.violation(f"{EVENTS} words sent; SDK {sdk_count}, ours {count}")
                    if number:
                        samples["sdk"].append(float(sdk_s) / EVENTS)
                        samples["ours"].append(ours_s / EVENTS)
                report.compare(
                    f"parse an event, {words}", samples, baseline="sdk", ours="ours", bar=0.25
                )
            child.stdin.close()
    report.note(f"Parsing: baseline is openai {version}; 0.25 x the time is 4 x the throughput.")
