"""A cancel while the local model starts, and while it answers: at once, and nothing is left."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import anyio
import pytest

from bargein.cancel import Cancelled, CancelSource, Cause
from bargein.process import Containment
from tests.models.local.files import fake_file
from tests.models.local.harness import STOP_BOUND_S, ask, is_alive, model_of, parts_of, said, until

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(90)]


async def test_a_cancel_while_it_loads_leaves_nothing(
    containment: Containment, tmp_path: Path
) -> None:
    file = fake_file(tmp_path, load_s=60)
    async with model_of(file, containment, []) as model:
        with CancelSource("a request") as source:
            async with anyio.create_task_group() as group:

                async def read() -> None:
                    with pytest.raises(Cancelled) as caught:
                        await parts_of(model, "hello", source.token)
                    assert caught.value.token is source.token
                    assert not is_alive(pid)

                group.start_soon(read)
                await until(lambda: file.seen("started"))
                pid = file.seen("started")[0]["pid"]
                began = time.monotonic()
                source.cancel(Cause.USER_STOP)
        assert time.monotonic() - began < STOP_BOUND_S
        assert containment.processes == ()


async def test_a_cancel_of_one_of_two_who_wait_does_not_hurt_the_other(
    containment: Containment, tmp_path: Path
) -> None:
    go_on = tmp_path / "go on"
    file = fake_file(tmp_path, load_until=str(go_on))
    async with model_of(file, containment, []) as model:
        with CancelSource("one") as one, CancelSource("other") as other:
            cancelled = asyncio.ensure_future(parts_of(model, "one", one.token))
            finished = asyncio.ensure_future(parts_of(model, "other", other.token))
            await until(lambda: file.seen("started"))
            one.cancel(Cause.USER_STOP)
            with pytest.raises(Cancelled):
                await cancelled
            go_on.touch()
            assert said(await finished) == "You said: other"
    assert len(file.seen("started")) == 1


async def test_the_one_who_comes_after_a_cancelled_start_gets_a_new_one(
    containment: Containment, tmp_path: Path
) -> None:
    go_on = tmp_path / "go on"
    file = fake_file(tmp_path, load_until=str(go_on))
    async with model_of(file, containment, []) as model:
        with CancelSource("one") as one:
            cancelled = asyncio.ensure_future(parts_of(model, "one", one.token))
            await until(lambda: file.seen("started"))
            one.cancel(Cause.USER_STOP)
            await until(lambda: all(process.stopping for process in containment.processes))
            go_on.touch()
            other = await parts_of(model, "other")
            with pytest.raises(Cancelled):
                await cancelled
        assert said(other) == "You said: other"
    assert len(file.seen("started")) == 2


async def test_there_are_never_two_children_though_the_first_will_not_go(
    containment: Containment, tmp_path: Path
) -> None:
    go_on = tmp_path / "go on"
    file = fake_file(tmp_path, load_until=str(go_on), stubborn=True)
    async with model_of(file, containment, []) as model:
        with CancelSource("one") as one:
            cancelled = asyncio.ensure_future(parts_of(model, "one", one.token))
            await until(lambda: file.seen("started"))
            one.cancel(Cause.USER_STOP)
            await until(lambda: all(process.stopping for process in containment.processes))
            go_on.touch()
            other = asyncio.ensure_future(parts_of(model, "other"))
            await until(lambda: len(file.seen("started")) == 2)
            assert not is_alive(file.seen("started")[0]["pid"])
            with pytest.raises(Cancelled):
                await cancelled
        assert said(await other) == "You said: other"


async def test_a_task_that_is_cancelled_natively_while_it_loads_leaves_nothing(
    containment: Containment, tmp_path: Path
) -> None:
    file = fake_file(tmp_path, load_s=60)
    async with model_of(file, containment, []) as model:
        task = asyncio.ensure_future(parts_of(model, "hello"))
        await until(lambda: file.seen("started"))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert containment.processes == ()


async def test_a_cancel_while_it_answers_closes_the_connection_and_keeps_the_child(
    containment: Containment, tmp_path: Path
) -> None:
    file = fake_file(tmp_path)
    async with model_of(file, containment, []) as model:
        with CancelSource("a request") as source:
            async with model.open(ask("talk for ever"), source.token) as stream:
                while said([await anext(stream)]) != "la ":
                    pass
                source.cancel(Cause.USER_STOP)
                with pytest.raises(Cancelled):
                    await anext(stream)
            assert stream.usage.output_tokens > 0
        await until(lambda: file.seen("client gone"))
        assert said(await parts_of(model, "still there?")) == "You said: still there?"
    assert len(file.seen("started")) == 1
    assert len(file.seen("asked")) == 2, "a cancelled request is not tried again"


async def test_a_cancel_between_lease_and_request_neither_waits_nor_hurts(
    containment: Containment, tmp_path: Path
) -> None:
    file = fake_file(tmp_path)
    async with model_of(file, containment, []) as model:
        await parts_of(model, "one")
        with CancelSource("a request") as source:
            task = asyncio.ensure_future(model.warm_up(source.token))
            await asyncio.sleep(0)
            began = time.monotonic()
            source.cancel(Cause.USER_STOP)
            with pytest.raises(Cancelled):
                await task
            assert time.monotonic() - began < STOP_BOUND_S
        await parts_of(model, "two")
    assert len(file.seen("started")) == 1


async def test_a_token_that_is_cancelled_already_starts_nothing(
    containment: Containment, tmp_path: Path
) -> None:
    file = fake_file(tmp_path)
    async with model_of(file, containment, []) as model:
        with CancelSource("a request") as source:
            source.cancel(Cause.USER_STOP)
            with pytest.raises(Cancelled):
                await parts_of(model, "hello", source.token)
    assert file.notes == []
