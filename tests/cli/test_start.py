"""Ctrl-C and SIGTERM while the program is only starting: it ends quietly, at any moment.

Nothing can be said of a signal that comes before the interpreter has reached the first line of
the program: Python itself may write a traceback then, and none of the program's files is in it.
"""

import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.cli.screen import PROGRAM

SCRIPT = """
[[answers]]
steps = [{ do = "say", text = "waiting" }, { do = "pause", seconds = 600 }]
"""
SCRIPT_ENTRY = (str(PROGRAM),)
MODULE_ENTRY = (sys.executable, "-m", "bargein")
STEPPED_ENTRY = (sys.executable, str(Path(__file__).with_name("stepped.py")))
RUN = ("run", "hello")
SERVE = ("serve", "--port", "0")
CHAT = ("chat", "--plain")
LATEST_MS, STEP_MS = 420, 30

# The package itself is read before its first line that does anything.
OURS = re.compile(r'File "[^"]*/bargein/(?!__init__\.py")[^"]*\.py"')


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "script.toml").write_text(SCRIPT)
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "BARGEIN_HOME": str(tmp_path / "data"),
        "BARGEIN_CHAT_HOST": "0",
        "BARGEIN_MODEL": f"scripted:{tmp_path / 'script.toml'}",
    }


class Started:
    """A program that is about to get a signal."""

    def __init__(self, command: tuple[str, ...], environment: dict[str, str]) -> None:
        self._child = subprocess.Popen(
            command,
            env=environment,
            cwd=environment["HOME"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def wait_for_imports(self, count: int) -> bool:
        """Until it has imported so many modules since its entry. False if it never does."""
        assert self._child.stderr is not None
        seen = 0
        for line in self._child.stderr:
            seen += seen > 0 or line.endswith(" bargein.cli.main\n")
            if seen > count:
                return True
        return False

    def end(self, number: signal.Signals) -> "Ended":
        below = psutil.Process(self._child.pid).children(recursive=True)
        self._child.send_signal(number)
        try:
            told = self._told(number)
        finally:
            self._child.kill()
        _, alive = psutil.wait_procs(below, timeout=10)
        return Ended(self._child.returncode, told, alive)

    def ended(self) -> "Ended":
        """When it has got its signal in another way. Its input is open until then."""
        try:
            self._child.wait(timeout=20)
        finally:
            self._child.kill()
        return Ended(self._child.returncode, self._child.communicate()[1], [])

    def _told(self, number: signal.Signals) -> str:
        """Returns everything it said until its end. A signal that came too early, which the
        interpreter reported and then forgot, is sent once more, as a user would."""
        try:
            _, told = self._child.communicate(timeout=10)
        except subprocess.TimeoutExpired as still_runs:
            if b"KeyboardInterrupt" in (still_runs.stderr or b""):
                self._child.send_signal(number)
            _, told = self._child.communicate(timeout=40)
        return told


@dataclass(frozen=True, slots=True)
class Ended:
    code: int
    told: str
    alive: list[psutil.Process]

    @property
    def is_quiet(self) -> bool:
        """By a Ctrl-C. (Python kills itself with the signal if it came in the middle of an
        `exec`, though it was caught; a shell sees 130 in both cases.)"""
        stopped = self.code in (130, -signal.SIGINT)
        return stopped and "Traceback" not in self.told and not self.alive

    @property
    def is_before_us(self) -> bool:
        """The interpreter was still busy with itself."""
        broken = re.search("KeyboardInterrupt|^Fatal Python|^Could not import runpy", self.told)
        ended = self.code in (0, 1, 130, -signal.SIGINT)
        return bool(broken) and ended and not OURS.search(self.told)


# Each begins its steps a little later than the one before, so that together they lie closer.
@pytest.mark.parametrize(
    ("first_ms", "entry", "command"),
    [
        (0, SCRIPT_ENTRY, RUN),
        (8, MODULE_ENTRY, RUN),
        (15, SCRIPT_ENTRY, SERVE),
        (23, MODULE_ENTRY, CHAT),
    ],
)
def test_ctrl_c_while_it_starts_is_quiet(
    environment: dict[str, str], first_ms: int, entry: tuple[str, ...], command: tuple[str, ...]
) -> None:
    for delay_ms in range(first_ms, LATEST_MS, STEP_MS):
        started = Started((*entry, *command), environment)
        time.sleep(delay_ms / 1000)
        ended = started.end(signal.SIGINT)
        # A server, or a chat with nothing to stop, leaves when it has come as far as to hear it.
        left = command is not RUN and ended.code == 0 and "Traceback" not in ended.told
        assert ended.is_quiet or left or ended.is_before_us, (delay_ms, ended)


@pytest.mark.parametrize("entry", [SCRIPT_ENTRY, MODULE_ENTRY])
def test_ctrl_c_after_any_import_is_quiet(
    environment: dict[str, str], entry: tuple[str, ...]
) -> None:
    """At moments that do not depend on how fast the machine is."""
    environment["PYTHONPROFILEIMPORTTIME"] = "1"
    for count in (0, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233, 350):
        started = Started((*entry, *RUN), environment)
        assert started.wait_for_imports(count), count
        ended = started.end(signal.SIGINT)
        assert ended.is_quiet, (count, ended)


@pytest.mark.parametrize(
    ("command", "number", "steps"),
    [
        (RUN, signal.SIGINT, (1, 8, 13, 15, 18)),
        (SERVE, signal.SIGINT, (1, 7, 9, 10, 11, 14, 24)),
        (CHAT, signal.SIGINT, (1, 5, 12)),
        (RUN, signal.SIGTERM, (8, 15)),
        (SERVE, signal.SIGTERM, (9, 10, 24)),
    ],
)
def test_a_signal_at_any_step_is_heard_and_quiet(
    environment: dict[str, str],
    command: tuple[str, ...],
    number: signal.Signals,
    steps: tuple[int, ...],
) -> None:
    for step in steps:
        started = Started((*STEPPED_ENTRY, str(step), number.name, *command), environment)
        ended = started.ended()
        left = command is not RUN and ended.code == 0
        killed = number is signal.SIGTERM and ended.code == -signal.SIGTERM
        assert ended.code == 130 or left or killed, (step, ended)
        assert "Traceback" not in ended.told, (step, ended)


@pytest.mark.parametrize("command", [RUN, SERVE])
def test_a_sigterm_while_it_starts_is_quiet(
    environment: dict[str, str], command: tuple[str, ...]
) -> None:
    for delay_ms in range(0, LATEST_MS, STEP_MS * 3):
        started = Started((*SCRIPT_ENTRY, *command), environment)
        time.sleep(delay_ms / 1000)
        ended = started.end(signal.SIGTERM)
        # A turn that it has come to is stopped; a server drains.
        assert ended.code in (-signal.SIGTERM, 130, 0), (delay_ms, ended)
        assert "Traceback" not in ended.told, (delay_ms, ended)
        assert not ended.alive, (delay_ms, ended)
