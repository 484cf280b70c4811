"""A command with `background: true`, as the terminal program shows it: a real screen, real
commands."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import psutil

from tests.cli.conftest import Open
from tests.cli.screen import PROGRAM

TAB = "\t"

SCRIPT = """
repeat = true
[[answers]]
when = "^serve"
steps = [
  {{ do = "call", name = "terminal", arguments = {{ background = true, command = "{command}" }} }},
]
[[answers]]
when = "^serve"
steps = [{{ do = "say", text = "it is up" }}]
[[answers]]
when = "in the background: finished"
steps = [{{ do = "say", text = "I saw it end" }}]
[[answers]]
when = '^(?!serve)'
steps = [{{ do = "say", text = "I heard you" }}]
"""


SLEEPS = f"sleep 300.{os.getpid()}"


def script(command: str) -> str:
    return SCRIPT.format(command=command)


def running(command: str = SLEEPS) -> list[int]:
    """Looked for from outside."""
    found = psutil.process_iter(["cmdline"])
    return [each.pid for each in found if (each.info["cmdline"] or []) == command.split()]


def test_it_is_listed_counted_completed_and_stopped_alone(chat: Open, tmp_path: Path) -> None:
    words = script(SLEEPS)
    screen = chat(script=words)
    screen.wait_ready()
    screen.enter("serve it")
    screen.wait_for("goes on in the background as t1_1_1")
    screen.wait_for("it is up")
    screen.wait_ready()
    screen.wait_until(lambda: "1 in the background" in screen.status, "it is counted")
    screen.wait_until(lambda: len(running()) == 1, "it to sleep")
    screen.enter("/tasks")
    screen.wait_for("s, in the background")
    screen.enter("/stop")
    screen.wait_for("nothing is running but 1 in the background")
    screen.type("/tasks stop t1")
    screen.wait_until(lambda: screen.text.count("t1_1_1  terminal") == 2, "a menu of ids")
    screen.type(TAB)
    screen.wait_until(lambda: screen.line == "/tasks stop t1_1_1", "its id to be completed")
    # A space closes the menu.
    screen.enter(" ")
    screen.wait_for("stopped (1 process)")
    screen.wait_until(lambda: "background" not in screen.status, "nothing in the background")
    assert running() == []
    screen.enter("/receipt")
    screen.wait_for("nobody is left, says the kernel")
    # The stop began no turn.
    assert "I heard you" not in screen.text
    assert "I saw it end" not in screen.text


def test_all_of_it_is_stopped_with_the_session(chat: Open, tmp_path: Path) -> None:
    words = script(SLEEPS)
    screen = chat(script=words)
    screen.wait_ready()
    screen.enter("serve it")
    screen.wait_for("it is up")
    screen.enter("/stop all")
    screen.wait_for("stopped (1 process)")
    assert running() == []
    screen.wait_until(lambda: "in the background" not in screen.status, "nothing runs")


def test_its_failure_is_announced(chat: Open, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    words = script("cat gate; exit 3")
    screen = chat(script=words)
    screen.wait_ready()
    screen.enter("serve it")
    screen.wait_for("it is up")
    gate.write_text("through the gate\n")
    screen.wait_for("in the background: exit code 3")
    screen.wait_for("I saw it end")


def test_leaving_says_what_is_ended_of_all_sessions(chat: Open, tmp_path: Path) -> None:
    words = script(SLEEPS)
    screen = chat(script=words)
    screen.wait_ready()
    screen.enter("serve it")
    screen.wait_for("it is up")
    screen.enter("/new")
    screen.wait_for("a new session")
    screen.enter("/exit")
    assert screen.exit_code() == 0
    assert "Shutting down: stopping terminal" in screen.text
    assert "(background)" in screen.text
    assert running() == []
    screen = chat("-c", script=words)
    screen.wait_for("in the background: ")
    screen.wait_until(lambda: "1 held" in screen.status, "told with the next message")


def test_plain_mode_tells_of_it_once_and_of_its_end(chat: Open, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    words = script("cat gate; exit 3")
    screen = chat("--plain", script=words)
    screen.wait_for("· /help")
    screen.enter("serve it")
    screen.wait_for("goes on in the background as t1_1_1]")
    screen.wait_for("it is up")
    gate.write_text("through the gate\n")
    screen.wait_for("in the background: exit code 3]")
    screen.wait_for("I saw it end")
    assert screen.text.count("exit code 3") == 1
    screen.enter("serve it")
    screen.wait_until(lambda: screen.text.count("goes on in the background as") == 2, "again")
    screen.enter("/exit")
    assert screen.exit_code() == 0
    assert "(background)" in screen.text


def run(tmp_path: Path, words: str, *arguments: str) -> tuple[int, str, str]:
    (tmp_path / "script.toml").write_text(words)
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "BARGEIN_HOME": str(tmp_path / "data"),
        "BARGEIN_CHAT_HOST": "0",
        "BARGEIN_MODEL": f"scripted:{tmp_path / 'script.toml'}",
    }
    done = subprocess.run(
        [PROGRAM, "run", *arguments],
        env=environment,
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=40,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def test_a_single_turn_ends_it_and_says_so(tmp_path: Path) -> None:
    words = script(SLEEPS)
    code, out, err = run(tmp_path, words, "serve it")
    assert (code, out) == (0, "it is up\n")
    assert "goes on in the background as t1_1_1" in err
    assert "still in the background, and ended with this run: " in err
    assert "stopped (1 process)" in err
    assert running() == []
    code, out, _ = run(tmp_path, words, "--json", "serve it")
    assert code == 0
    assert any("background_ended" in line for line in out.splitlines())
    assert all(json.loads(line) for line in out.splitlines())
    assert running() == []
