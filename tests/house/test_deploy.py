"""The files of deploy/ fit the program that they start."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

from bargein.server.limits import GatewayLimits

DEPLOY = Path(__file__).parents[2] / "deploy"


def understood(arguments: list[str]) -> str:
    """The help of the program for a command, which must know every flag of it."""
    command, *flags = arguments
    shown = subprocess.run(
        [Path(sys.executable).with_name("bargein"), command, "--help"],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    unknown = [flag for flag in flags if flag.startswith("--") and flag not in shown.stdout]
    assert not unknown, unknown
    return shown.stdout


def test_the_service_starts_with_flags_that_exist_and_waits_long_enough() -> None:
    unit = (DEPLOY / "bargein.service").read_text()
    start = re.search(r"^ExecStart=(.*)$", unit, re.MULTILINE)
    stop_s = re.search(r"^TimeoutStopSec=(\d+)$", unit, re.MULTILINE)
    assert start is not None
    assert stop_s is not None
    _, *arguments = shlex.split(start[1])
    understood(arguments)
    drain_s = float(arguments[arguments.index("--drain") + 1])
    assert int(stop_s[1]) > drain_s + GatewayLimits().quit_s


def test_the_container_starts_with_flags_that_exist() -> None:
    text = (DEPLOY / "Containerfile").read_text()
    command = re.search(r"^CMD \[(.*)\]$", text, re.MULTILINE)
    assert command is not None
    understood(re.findall(r'"([^"]+)"', command[1]))
