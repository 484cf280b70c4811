"""Finding processes by their tag, wherever they went."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from bargein.process.helper import procfs
from bargein.process.tags import TagFinder, new_tag, tags_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="there is no /proc")


@contextmanager
def carrier(*tags: bytes) -> Iterator[int]:
    with subprocess.Popen(["sleep", "600"], env={**os.environb, **dict.fromkeys(tags, b"1")}) as it:
        try:
            # Exec makes the environment readable a moment after Popen has returned.
            deadline = time.monotonic() + 20
            while not tags_of(it.pid):
                assert time.monotonic() < deadline
            yield it.pid
        finally:
            it.kill()


@contextmanager
def finder() -> Iterator[TagFinder]:
    made = TagFinder()
    try:
        yield made
    finally:
        made.close()


def test_whoever_carries_a_tag_is_found_by_it_alone() -> None:
    one, other = new_tag(), new_tag()
    with finder() as tags:
        since = {"since_pid": tags.last_pid(), "since_s": time.monotonic()}
        with carrier(one) as first, carrier(one, other) as both:
            assert tags_of(both) == sorted([one, other], key=tags_of(both).index)
            assert tags.carriers(one, **since) == [first, both]  # type: ignore[arg-type]
            assert tags.carriers(other, **since) == [both]  # type: ignore[arg-type]


def test_a_process_without_a_readable_environment_is_looked_at_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As while it becomes another program."""
    tag = new_tag()
    with finder() as tags:
        since_pid, since_s = tags.last_pid(), time.monotonic()
        with carrier(tag) as pid, monkeypatch.context() as patched:
            patched.setattr(procfs, "environ_of", lambda pid: b"")
            assert tags.carriers(tag, since_pid=since_pid, since_s=since_s) == []
            patched.undo()
            assert tags.carriers(tag, since_pid=since_pid, since_s=since_s) == [pid]


def test_what_one_caller_knows_is_still_found_for_another() -> None:
    tag = new_tag()
    with finder() as tags:
        since_pid, since_s = tags.last_pid(), time.monotonic()
        with carrier(tag) as pid:
            known = {pid}
            assert pid not in tags.carriers(tag, since_pid=since_pid, since_s=since_s, known=known)
            assert pid in tags.carriers(tag, since_pid=since_pid, since_s=since_s)


def test_threads_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []

    def environ_of(pid: int) -> bytes:
        looked.append(pid)
        return b""

    monkeypatch.setattr(procfs, "environ_of", environ_of)
    with finder() as tags:
        since_pid, since_s = tags.last_pid(), time.monotonic()
        over = threading.Event()
        thread = threading.Thread(target=over.wait)
        thread.start()
        tags.carriers(new_tag(), since_pid=since_pid, since_s=since_s)
        over.set()
        thread.join()
    assert thread.native_id not in looked
