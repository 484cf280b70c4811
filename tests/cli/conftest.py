"""Screens for the tests: one program per test, or one for many tests with a new session each."""

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bargein.cli.hosting import READY, UNFIT
from tests.cli.screen import CTRL_L, CTRL_U, PROGRAM, Screen

# An answer is played once until none fits any more, so each message here has its own.
ANSWERED = """
[[answers]]
when = "^wait"
steps = [{ do = "say", text = "answered it" }]
"""

SCRIPT = r"""
repeat = true
[[answers]]
when = "^wait"
steps = [{ do = "say", text = "waiting" }, { do = "pause", seconds = 600 }]
[[answers]]
when = "^run and stop"
steps = [
    { do = "say", text = "Let me run that." },
    { do = "call", name = "terminal", arguments = { command = "echo begun; sleep 120" } },
]
[[answers]]
when = "^run on"
steps = [{ do = "call", name = "terminal", arguments = { command = "echo begun; sleep 120" } }]
[[answers]]
when = "^run on"
steps = [{ do = "say", text = "went on without it" }]
[[answers]]
when = "^danger"
steps = [{ do = "call", name = "terminal", arguments = { command = "rm -rf build" } }]
[[answers]]
when = "^danger"
steps = [{ do = "say", text = "so be it" }]
[[answers]]
when = "^write"
steps = [
    { do = "call", name = "write_file", arguments = { path = "notes.txt", content = "kept" } },
]
[[answers]]
when = "^write"
steps = [{ do = "say", text = "it is written" }]
[[answers]]
when = "last of the lines"
steps = [{ do = "say", text = "all of it came" }]
[[answers]]
when = 'I ran this myself:\s+\$ echo to be shared\s+to be shared\s+\[exit 0'
steps = [{ do = "say", text = "thanks for showing" }]
[[answers]]
when = '^(?!wait|run|danger|write|last|I ran|look)'
steps = [{ do = "say", text = "answered it" }]
"""

Open = Callable[..., Screen]


@pytest.fixture(scope="session")
def hosts_work(tmp_path_factory: pytest.TempPathFactory) -> bool:
    """Whether a host can protect itself from its agent's commands here. Asks a real one."""
    home = tmp_path_factory.mktemp("hosts")
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as answer:
        command = [str(PROGRAM), "host", "--ready", str(writing)]
        environment = {**os.environ, "BARGEIN_HOME": str(home / "data"), "HOME": str(home)}
        with subprocess.Popen(command, env=environment, cwd="/", pass_fds=(writing,)) as host:
            os.close(writing)
            said = answer.read()
            host.terminate()
    assert said in (READY, UNFIT)
    return said == READY


@pytest.fixture
def host_possible(hosts_work: bool) -> None:
    """Skips the test where there can be no host."""
    if not hosts_work:
        pytest.skip("the commands of an agent could reach a host here: no namespace hides it")


@pytest.fixture
def chat(tmp_path: Path) -> Iterator[Open]:
    """Opens programs that are closed after the test."""
    opened: list[Screen] = []

    def open_screen(*arguments: str, script: str = SCRIPT, **options: object) -> Screen:
        screen = Screen("chat", *arguments, home=tmp_path, script=script, **options)  # type: ignore[arg-type]
        opened.append(screen)
        return screen

    yield open_screen
    for screen in opened:
        screen.close()


class Shared:
    """A program that many tests use, started again if one of them has ended it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._screen: Screen | None = None

    def fresh(self) -> Screen:
        """In a new session, on an empty screen."""
        if self._screen is None or not self._screen.alive:
            self._screen = Screen("chat", home=self._folder, script=SCRIPT)
            self._screen.wait_ready()
        screen = self._screen
        # What the test before left must be gone, or it would be taken for what comes now.
        screen.type(CTRL_U + CTRL_L)
        screen.wait_for("a new session", gone=True)
        screen.enter("/new")
        screen.wait_for("a new session")
        screen.wait_ready()
        screen.type(CTRL_L)
        screen.wait_for("a new session", gone=True)
        return screen

    def close(self) -> None:
        if self._screen is not None:
            self._screen.close()


@pytest.fixture(scope="module")
def _shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    shared = Shared(tmp_path_factory.mktemp("shared"))
    yield shared
    shared.close()


@pytest.fixture
def screen(_shared: Shared) -> Screen:
    return _shared.fresh()
