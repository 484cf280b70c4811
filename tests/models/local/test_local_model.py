"""The embedded model itself: the real runtime, the real weights."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal

import anyio
import msgspec
import psutil
import pytest

from bargein import Agent, Engine
from bargein.cancel import Cancelled, CancelSource, Cause
from bargein.contracts.model import (
    EndPart,
    ModelRequest,
    RetryingPart,
    StopReason,
    Text,
    TextPart,
    ToolSchema,
    UserMessage,
)
from bargein.models.errors import ContextTooLong
from bargein.models.local import (
    Died,
    LocalModel,
    LocalOptions,
    Notice,
    Reading,
    RuntimeFailed,
    RuntimeMissing,
    RuntimeSettings,
    TooSmall,
)
from bargein.models.local.options import LocalOptions as Options
from bargein.models.local.weights import SMOLLM2
from bargein.models.settings import ModelSettings
from bargein.process import Containment
from tests.conftest import BACKENDS, Backend
from tests.models.local.harness import (
    QUICK,
    STOP_BOUND_S,
    ask,
    is_alive,
    of_kind,
    parts_of,
    said,
    until,
)
from tests.session.world import CONFIG

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.timeout(360),
    pytest.mark.needs("libgomp.so.1"),  # of the runtime
]

IDLE_BOUND_S = 30.0


@pytest.fixture(scope="module", params=["asyncio"])
def anyio_backend(request: pytest.FixtureRequest) -> Backend:
    name: str = request.param
    return BACKENDS[name]


@asynccontextmanager
async def embedded(
    weights_dir: Path, containment: Containment, notices: list[Notice] | None = None
) -> AsyncIterator[LocalModel]:
    options = LocalOptions(
        containment=containment, on_notice=notices.append if notices is not None else None
    )
    model = LocalModel(ModelSettings(weights_dir=weights_dir, policy=QUICK), options=options)
    try:
        yield model
    finally:
        await model.aclose()


async def test_it_answers_and_says_what_it_cannot_do(
    weights_dir: Path, containment: Containment
) -> None:
    notices: list[Notice] = []
    async with embedded(weights_dir, containment, notices) as model:
        assert (model.name, model.context_tokens) == ("local", SMOLLM2.context_tokens)
        request = ModelRequest(
            messages=(UserMessage((Text("Say hello."), Text("Be friendly."))),),
            system="You are a friendly assistant.",
            tools=(ToolSchema("look", "Look.", msgspec.Raw(b'{"type":"object"}')),),
            output_tokens_max=12,
        )
        with CancelSource("a request") as source:
            async with model.open(request, source.token) as stream:
                parts = [part async for part in stream]
        assert len(said(parts)) > 5
        assert len(of_kind(TextPart, parts)) > 3, "it is streamed"
        (end,) = of_kind(EndPart, parts)
        assert end.stop in (StopReason.LENGTH, StopReason.END)
        assert 0 < stream.usage.output_tokens <= 12
        assert stream.usage.input_tokens > 10
        assert not stream.usage.estimated
    assert [notice.left_out for notice in of_kind(TooSmall, notices)] == ["tools"]


async def test_it_keeps_to_a_schema(weights_dir: Path, containment: Containment) -> None:
    class Answer(msgspec.Struct):
        colour: str

    schema = (
        b'{"type":"object","properties":{"colour":{"enum":["red","green"]}},'
        b'"required":["colour"],"additionalProperties":false}'
    )
    async with embedded(weights_dir, containment) as model:
        request = ModelRequest(
            messages=(UserMessage((Text("Which colour has grass?"),)),),
            response_schema=msgspec.Raw(schema),
            output_tokens_max=30,
        )
        answer = msgspec.json.decode(said(await parts_of(model, request)), type=Answer)
    assert answer.colour in ("red", "green")


async def test_a_typed_turn(weights_dir: Path, containment: Containment) -> None:
    class Grass(msgspec.Struct):
        colour: Literal["red", "green"]

    async with (
        embedded(weights_dir, containment) as model,
        Engine(Agent(model, output=Grass), store="memory", config=CONFIG) as engine,
    ):
        session = await engine.session("s")
        result = await (await session.send("Which colour has grass?")).result()
    assert result.output.colour in ("red", "green")


async def test_nobody_without_the_key_can_use_it(
    weights_dir: Path, containment: Containment
) -> None:
    import aiohttp

    async with embedded(weights_dir, containment) as model:
        with CancelSource("typing") as source:
            await model.warm_up(source.token)
        assert model.process is not None
        (listening,) = [
            connection
            for connection in psutil.Process(model.process.pid).net_connections("inet")
            if connection.status == psutil.CONN_LISTEN
        ]
        assert listening.laddr[0] == "127.0.0.1"
        async with aiohttp.ClientSession() as session:
            for path in ("/v1/chat/completions", "/completion", "/props", "/slots"):
                url = f"http://127.0.0.1:{listening.laddr[1]}{path}"
                async with session.post(url, json={"prompt": "hello"}) as response:
                    assert response.status in (401, 404), path


async def idle_after(process: psutil.Process) -> float:
    """Seconds until the process computes nothing any more."""
    began = time.monotonic()
    quiet_since, spent = began, sum(process.cpu_times()[:2])
    while time.monotonic() - quiet_since < 0.3:
        assert time.monotonic() - began < IDLE_BOUND_S, "it still computes"
        await anyio.sleep(0.02)
        now = sum(process.cpu_times()[:2])
        if now - spent > 0.005:
            quiet_since, spent = time.monotonic(), now
    return quiet_since - began


@pytest.mark.parametrize("phase", ["reading", "generating"])
async def test_after_an_interrupt_it_stops_computing(
    phase: str, weights_dir: Path, containment: Containment
) -> None:
    notices: list[Notice] = []
    async with embedded(weights_dir, containment, notices) as model:
        with CancelSource("typing") as source:
            await model.warm_up(source.token)
        assert model.process is not None
        process = psutil.Process(model.process.pid)
        words = "Tell me a very long story." + (" again" * 3000 if phase == "reading" else "")

        async def read() -> None:
            async with model.open(ask(words), source.token) as stream:
                async for part in stream:
                    if isinstance(part, TextPart):
                        generating.set()

        generating = anyio.Event()
        with CancelSource("a request") as source:
            task = asyncio.ensure_future(read())
            if phase == "reading":
                await until(
                    lambda: any(
                        0 < n.done_tokens < n.total_tokens for n in of_kind(Reading, notices)
                    ),
                    30,
                )
            else:
                await generating.wait()
            source.cancel(Cause.USER_STOP)
            began = time.monotonic()
            with pytest.raises(Cancelled):
                await task
            assert time.monotonic() - began < STOP_BOUND_S
        await idle_after(process)
        if phase == "reading":
            assert not generating.is_set()
        assert said(await parts_of(model, "Hello?")), "and it can be asked again"
        assert model.process is not None
        assert model.process.pid == process.pid


async def test_a_child_that_is_killed_while_it_generates_is_started_again(
    weights_dir: Path, containment: Containment
) -> None:
    notices: list[Notice] = []
    async with embedded(weights_dir, containment, notices) as model:
        request = msgspec.structs.replace(ask("Tell me a story."), output_tokens_max=40)
        with CancelSource("a request") as source:
            async with model.open(request, source.token) as stream:
                await anext(stream)
                assert model.process is not None
                killed = model.process.pid
                os.kill(killed, signal.SIGKILL)
                rest = [part async for part in stream]
        assert len(of_kind(RetryingPart, rest)) == 1
        assert said(rest)
        assert model.process is not None
        assert model.process.pid != killed
    assert [died.how for died in of_kind(Died, notices)] == ["SIGKILL"]


async def test_more_than_it_can_read_is_told(weights_dir: Path, containment: Containment) -> None:
    async with embedded(weights_dir, containment) as model:
        with pytest.raises(ContextTooLong):
            await parts_of(model, "word " * 9000)


async def test_a_file_of_the_users_own(weights_dir: Path, containment: Containment) -> None:
    path = weights_dir / SMOLLM2.file_name
    settings = ModelSettings(context_tokens=512)
    model = LocalModel(settings, path=str(path), options=Options(containment=containment))
    try:
        assert model.context_tokens == 512
        request = msgspec.structs.replace(ask("Hello?"), output_tokens_max=5)
        assert said(await parts_of(model, request))
    finally:
        await model.aclose()


async def test_a_file_that_is_cut_short_is_told_in_the_runtimes_words(
    weights_dir: Path, containment: Containment, tmp_path: Path
) -> None:
    path = tmp_path / "short.gguf"
    with (weights_dir / SMOLLM2.file_name).open("rb") as whole:
        path.write_bytes(whole.read(5_000_000))
    model = LocalModel(path=str(path), options=Options(containment=containment))
    try:
        with pytest.raises(RuntimeFailed, match="corrupted or incomplete") as caught:
            await parts_of(model, "Hello?")
        assert str(path) in str(caught.value)
    finally:
        await model.aclose()


async def test_without_the_runtime_it_says_how_to_install_it(
    weights_dir: Path, containment: Containment
) -> None:
    # A Python that looks for packages nowhere has none.
    command = (sys.executable, "-I", "-S", *Options().command[2:])
    options = Options(containment=containment, command=command)
    model = LocalModel(ModelSettings(weights_dir=weights_dir), options=options)
    try:
        with pytest.raises(RuntimeMissing, match=r"pip install 'bargein\[local\]'"):
            await parts_of(model, "Hello?")
    finally:
        await model.aclose()


async def test_ten_at_once_are_all_answered(weights_dir: Path, containment: Containment) -> None:
    runtime = RuntimeSettings(requests_at_once=4)
    options = Options(containment=containment, runtime=runtime)
    model = LocalModel(ModelSettings(weights_dir=weights_dir), options=options)
    try:
        request = msgspec.structs.replace(ask("Count to ten."), output_tokens_max=4)
        answers = await asyncio.gather(*(parts_of(model, request) for _ in range(10)))
        assert all(said(parts) for parts in answers)
    finally:
        await model.aclose()


ASK_AND_STAY = """
import asyncio, sys
from pathlib import Path
from bargein.cancel import CancelSource
from bargein.models.local import LocalModel, LocalOptions
from bargein.models.settings import ModelSettings
from bargein.process import open_containment

async def main():
    containment = await open_containment(means=sys.argv[2])
    model = LocalModel(ModelSettings(weights_dir=Path(sys.argv[1])),
                       options=LocalOptions(containment=containment))
    with CancelSource("typing") as source:
        await model.warm_up(source.token)
    print(model.process.pid, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.mark.parametrize("means", ["auto", "group"])
async def test_it_does_not_outlive_a_parent_that_is_killed(weights_dir: Path, means: str) -> None:
    """Also where there is only a process group to hold it: then its input's end tells it."""
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", ASK_AND_STAY, str(weights_dir), means, stdout=asyncio.subprocess.PIPE
    )
    assert parent.stdout is not None
    child = psutil.Process(int(await parent.stdout.readline()))
    parent.kill()
    await parent.wait()
    await until(lambda: not is_alive(child.pid))
