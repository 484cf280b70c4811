"""The files of deploy/ fit the program that they start."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

from bargein.server.limits import GatewayLimits

DEPLOY = Path(__file__).parents[2] / "deploy"
UNIT = (DEPLOY / "bargein.service").read_text()


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


def test_commands_do_not_work_in_the_data_directory() -> None:
    """They would have to see what they must not."""
    unit = dict(
        re.findall(r"^(WorkingDirectory|StateDirectory|Environment)=(.*)$", UNIT, re.MULTILINE)
    )
    variables = dict(each.split("=", 1) for each in unit["Environment"].split())
    made = {f"%S/{name}" for name in unit["StateDirectory"].split()}
    assert made == {unit["WorkingDirectory"], variables["BARGEIN_HOME"]}
    assert len(made) == 2
    assert variables["HOME"] == unit["WorkingDirectory"]
    assert "RestrictNamespaces=yes" not in UNIT

    container = (DEPLOY / "Containerfile").read_text()
    work = re.search(r"^WORKDIR (\S+)$", container.rpartition("FROM ")[2], re.MULTILINE)
    home = re.search(r"BARGEIN_HOME=(\S+)", container)
    assert work is not None
    assert home is not None
    assert work[1] != home[1]
    volumes = re.search(r"^VOLUME (.*)$", container, re.MULTILINE)
    assert volumes is not None
    assert set(volumes[1].split()) == {work[1], home[1]}
