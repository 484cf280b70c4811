"""The same suite once more, by a user without any privilege, if it is root that runs it.

That user has no cgroup to start processes in (unless one was delegated), so this is where the
supervisor carries the promise.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.process.ordinary_user import NOBODY, as_ordinary_user

HERE = Path(__file__).parent
PROJECT = HERE.parent.parent


@pytest.mark.timeout(600)
def test_as_ordinary_user() -> None:
    if os.geteuid() != 0:
        return  # then all the other modules are this test
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        scratch = Path(folder, "scratch")
        scratch.mkdir()
        os.chown(scratch, NOBODY, NOBODY)
        done = subprocess.run(
            [
                *as_ordinary_user(),
                *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"),
                # One loop is enough, and a group is a group for everybody: what differs is what
                # the kernel allows.
                *("-k", "not uvloop and not group", f"--basetemp={scratch}/pytest"),
                f"--ignore={__file__}",
                str(HERE),
            ],
            cwd=PROJECT,
            env=os.environ | {"TMPDIR": str(scratch), "HOME": str(scratch)},
            capture_output=True,
            text=True,
            check=False,
        )
    print(done.stdout[-5000:])  # noqa: T201 - shown by pytest if this fails
    assert done.returncode == 0
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None
    assert int(passed[1]) > 150
