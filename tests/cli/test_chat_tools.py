"""The terminal program with a real command under it."""

import os
from pathlib import Path

import psutil

from tests.cli.screen import CTRL_B, ESCAPE, Screen

SCRIPT = """
repeat = true
[[answers]]
when = "^sleep"
steps = [
    {{ do = "say", text = "Let me run that." }},
    {{ do = "call", name = "terminal", arguments = {{ command = "{command}" }} }},
]
[[answers]]
steps = [{{ do = "say", text = "I heard you." }}]
"""


def marked(marker: str) -> list[int]:
    """Processes that carry the marker in their environment, found from outside."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("BARGEIN_TEST_MARK") == marker:
                found.append(process.pid)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def test_a_command_and_its_escapee_are_stopped_and_the_next_message_is_answered(
    tmp_path: Path,
) -> None:
    marker = f"chat-{os.getpid()}-{tmp_path.name}"
    command = f"export BARGEIN_TEST_MARK={marker}; (setsid sleep 121 &); echo begun; sleep 120"
    screen = Screen("chat", home=tmp_path, script=SCRIPT.format(command=command))
    try:
        screen.wait_for("ready")
        screen.enter("sleep now")
        screen.wait_for("│ begun")
        # Both carry the mark when they have become what they are: a moment after they began.
        screen.wait_until(lambda: len(marked(marker)) == 2, "both to sleep")
        screen.type(ESCAPE)
        screen.wait_for("stopped in")
        assert marked(marker) == []
        screen.enter("are you there?")
        screen.wait_for("I heard you.")
        screen.enter("/receipt")
        screen.wait_for("sleep 121: SIG")
    finally:
        screen.close()


def test_ctrl_b_moves_a_call_to_the_background_and_its_outcome_comes_as_a_message(
    tmp_path: Path,
) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    command = f"echo begun; cat {gate}"
    screen = Screen("chat", home=tmp_path, script=SCRIPT.format(command=command))
    try:
        screen.wait_for("ready")
        screen.enter("sleep now")
        screen.wait_for("│ begun")
        screen.type(CTRL_B)
        screen.wait_for("I heard you.")
        screen.wait_for("· 1 in the background")
        gate.write_text("through the gate\n")
        screen.wait_for("background: finished")
        screen.wait_for("· 1 in the background", gone=True)
    finally:
        screen.close()


def test_what_ran_is_told_again_by_what_it_did_and_notes_are_not_the_users_words(
    tmp_path: Path,
) -> None:
    script = SCRIPT.format(command="echo begun; sleep 120")
    screen = Screen("chat", home=tmp_path, script=script)
    try:
        screen.wait_for("ready")
        screen.enter("sleep now")
        screen.wait_for("│ begun")
        screen.type(CTRL_B)
        screen.wait_for("I heard you.")
        screen.wait_ready()
        screen.enter("and wait")
        screen.wait_until(lambda: screen.text.count("I heard you.") == 2, "the second answer")
        screen.wait_ready()
        screen.enter("/exit")
        assert screen.exit_code() == 0
    finally:
        screen.close()
    screen = Screen("chat", "-c", home=tmp_path, script=script)
    try:
        screen.wait_for("terminal  echo begun; sleep 120 in the background: ")
        screen.wait_for("✓ terminal  echo begun; sleep 120 · in the background")
        screen.wait_for("> and wait")
        assert "> [The call" not in screen.text
    finally:
        screen.close()
    screen = Screen("chat", "-c", "--plain", home=tmp_path, script=script)
    try:
        screen.wait_for("· /help")
        assert "you said: sleep now" in screen.text
        assert "[terminal  echo begun; sleep 120: in the background]" in screen.text
        assert "it said: I heard you." in screen.text
        assert "you said: [The call" not in screen.text
    finally:
        screen.close()
