"""A program that is frozen beyond its deadline leaves no command running."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bargein.process import Means
from tests.process import zoo
from tests.process.conftest import CERTAIN
from tests.process.leaseholder import LASTS_S

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.parametrize("anyio_backend", ["asyncio"]),
    pytest.mark.timeout(40),
]

PROGRAM = Path(__file__).with_name("leaseholder.py")
KINDS = ["daemon", "deaf", "chain"]


@pytest.mark.parametrize("means", CERTAIN, ids=str)
async def test_commands_of_a_frozen_program_die(means: Means, tmp_path: Path) -> None:
    mark = zoo.new_mark()
    with subprocess.Popen(  # noqa: ASYNC220 - it lives as long as the test
        [sys.executable, str(PROGRAM), means.value, mark, str(tmp_path), *KINDS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    ) as owner:
        assert owner.stdin is not None
        assert owner.stdout is not None
        try:
            assert owner.stdout.readline() == b"here\n"
            assert len(zoo.alive(mark)) >= len(KINDS)
            # Past several deadlines that were moved in time.
            await asyncio.sleep(3 * LASTS_S)
            assert len(zoo.alive(mark)) >= len(KINDS)
            owner.send_signal(signal.SIGSTOP)
            # A chain that forks on and on is caught by chance where there is no cgroup: the bound
            # is the test's own.
            while zoo.alive(mark):  # noqa: ASYNC110 - seen from outside
                await asyncio.sleep(0.01)
            owner.send_signal(signal.SIGCONT)
            # It is in order again, spare processes included.
            for _ in range(3):
                owner.stdin.write(b"hello\n")
                owner.stdin.flush()
                assert owner.stdout.readline() == b"0\n"
        finally:
            owner.kill()
            owner.wait()
            zoo.put_down(mark)
