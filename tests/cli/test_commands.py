"""The slash commands and `!`, typed into a real terminal."""

import os
from pathlib import Path

import psutil
import pytest

from tests.cli.conftest import SCRIPT, Open
from tests.cli.screen import CTRL_C, DOWN, ESCAPE, Screen
from tests.sandbox.holds import sandbox_here


def test_an_unknown_command_says_so_a_beginning_is_enough_and_words_come_back(
    screen: Screen,
) -> None:
    screen.enter("/dance with me")
    screen.wait_for("no such command: /dance")
    screen.wait_until(lambda: screen.line == "/dance with me", "the words again")
    screen.type(CTRL_C)
    screen.enter("/s ")
    screen.wait_for("/s may be /stop, /steer")
    screen.enter("/rece ")
    screen.wait_for("nothing has been stopped yet")


def test_undo_takes_the_turn_back_with_its_files_and_redo_brings_them_again(screen: Screen) -> None:
    screen.enter("write it")
    screen.wait_for("it is written")
    screen.wait_ready()
    screen.enter("/diff")
    screen.wait_for("+++ b/notes.txt")
    screen.enter("/undo --preview")
    screen.wait_for("/undo would take back: write it")
    screen.wait_for("- notes.txt  removed")
    screen.enter("/rewind")
    screen.wait_for("t1  write it")
    screen.enter("/undo")
    screen.wait_for("taken back: write it")
    screen.wait_for("what its calls did besides is not undone")
    screen.wait_for("notes.txt: finished")
    screen.enter("/redo")
    screen.wait_for("+ notes.txt  brought back")
    screen.enter("/undo")
    screen.wait_for("there is no turn to take back")


def test_staged_turns_are_shown_accepted_taken_back_and_dropped(chat: Open) -> None:
    if not sandbox_here().holds:
        pytest.skip(f"no sandbox here: {sandbox_here().detail}")
    screen = chat("--staged")
    screen.wait_for("turns are staged")
    screen.wait_ready()
    screen.enter("write it")
    screen.wait_for("it is written")
    screen.wait_ready()
    screen.enter("/stage off")
    screen.wait_for("staged (notes.txt); accept or discard them first")
    screen.type(CTRL_C)
    screen.enter("/stage")
    screen.wait_for("+++ b/notes.txt")
    screen.wait_for("+ notes.txt  added")
    screen.enter("/stage accept notes.txt")
    screen.wait_for("accepted (/stage undo takes it back):")
    screen.enter("/stage accept")
    screen.wait_for("nothing is staged")
    screen.enter("/stage undo")
    screen.wait_for("the acceptance is taken back")
    screen.enter("/stage discard --all")
    screen.wait_for("discarded:")
    screen.enter("/stage dance")
    screen.wait_for("/stage dance: say /stage, /stage on")
    screen.type(CTRL_C)
    screen.enter("/stage off")
    screen.wait_for("turns work in the folder itself")
    screen.enter("/stage")
    screen.wait_for("this session is not staged")


def test_tasks_lists_what_runs_and_stops_one_while_the_turn_goes_on(screen: Screen) -> None:
    screen.enter("run on")
    screen.wait_for("│ begun")
    screen.enter("/tasks")
    screen.wait_for("t1_1_1  terminal  echo begun; sleep 120")
    screen.enter("/tasks stop nobody")
    screen.wait_for("no task 'nobody' is running")
    screen.type(CTRL_C)
    screen.enter("/tasks stop t1_1_1")
    screen.wait_for("went on without it")
    screen.wait_ready()
    screen.enter("/tasks")
    screen.wait_for("nothing is running")


def test_the_inbox_is_listed_edited_and_dropped_from(screen: Screen) -> None:
    screen.enter("wait for me")
    screen.wait_for("waiting")
    for words in ("one", "two"):
        screen.enter(f"/queue {words}")
        screen.wait_for(f"↳ {words}")
    screen.enter("/inbox")
    screen.wait_for("m2 (queue): one")
    screen.enter("/inbox edit m2 changed words")
    screen.wait_for("↳ changed words")
    screen.enter("/inbox drop m3")
    screen.wait_for("↳ two", gone=True)
    screen.enter("/inbox drop m3")
    screen.wait_for("m3 is not in the inbox")
    screen.type(CTRL_C)
    screen.enter("/pause")
    screen.enter("/redirect hello instead")
    text = screen.wait_for("answered it")
    assert "> hello instead" in text


def test_models_tools_status_and_sessions(screen: Screen) -> None:
    screen.enter("/tools")
    screen.wait_for("web_fetch")
    screen.enter("/model dance")
    screen.wait_for("'dance' is not a model that Bargein knows")
    screen.type(CTRL_C)
    screen.enter("/model openai:nobody@http://127.0.0.1:9/v1")
    screen.wait_for("openai:nobody@http://127.0.0.1:9/v1 from the next step on")
    screen.enter("/model scripted:script.toml")
    screen.wait_for("scripted:script.toml from the next step on")
    screen.enter("hello again")
    screen.wait_for("answered it")
    screen.wait_ready()
    screen.enter("/status")
    screen.wait_for("kept in")
    name = screen.text.partition("session  ")[2].split()[0]
    screen.enter("/new")
    screen.wait_for("a new session")
    screen.enter(f"/sessions {name}")
    screen.wait_for(f"this is {name}")
    screen.wait_for("> hello again")


def test_a_session_with_nothing_in_it_is_not_made_shorter(screen: Screen) -> None:
    screen.enter("/compact")
    screen.wait_for("there is nothing to shorten")


def test_help_names_every_command_and_export_writes_a_page(chat: Open, tmp_path: Path) -> None:
    from bargein.cli.chat.commands import COMMANDS

    screen = chat(rows=60)
    screen.wait_ready()
    screen.enter("/help")
    screen.wait_for("suspend the program")
    screen.wait_until(lambda: all(f"/{name} " in screen.text for name in COMMANDS), "every command")
    screen.enter("hello")
    screen.wait_for("answered it")
    screen.wait_ready()
    screen.enter("/export page.md")
    screen.wait_for("written to page.md")
    assert "answered it" in (tmp_path / "page.md").read_text()
    screen.enter("/export page.md")
    screen.wait_for("page.md: File exists; name another file")
    screen.type(CTRL_C)
    screen.enter("/exit")
    assert screen.exit_code() == 0


def test_a_command_of_ones_own_is_shown_stopped_whole_and_shared_when_asked(
    screen: Screen,
) -> None:
    screen.enter("!echo to be shared")
    text = screen.wait_for("only you have seen this; /tell sends it")
    assert "$ echo to be shared\nto be shared\n[exit 0" in text
    screen.enter("/tell")
    screen.wait_for("thanks for showing")
    screen.wait_ready()
    marker = f"own-{os.getpid()}"
    screen.enter(f"!export BARGEIN_MARK={marker}; (setsid sleep 97 &); echo up; sleep 98")
    screen.wait_for("│ up")
    screen.wait_status("running your command")
    screen.enter("hello meanwhile")
    screen.wait_for("answered it")
    screen.wait_until(lambda: len(marked(marker)) == 2, "both to sleep")
    screen.type(ESCAPE)
    screen.wait_for("[stopped in")
    assert marked(marker) == []
    screen.enter("!sleep 99")
    screen.wait_for("Esc stops it")
    screen.type(CTRL_C)
    screen.wait_until(lambda: screen.text.count("[stopped in") == 2, "the second stop")


def marked(marker: str) -> list[int]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("BARGEIN_MARK") == marker:
                found.append(process.pid)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def test_files_and_arguments_complete(chat: Open, tmp_path: Path) -> None:
    (tmp_path / "a-long-name.txt").write_text("")
    screen = chat(script=SCRIPT)
    screen.wait_ready()
    screen.type("look at @a-l")
    screen.wait_for("a-long-name.txt")
    screen.type("\t\r")
    screen.wait_until(lambda: screen.line == "look at @a-long-name.txt", "the name")
    screen.type(CTRL_C)
    screen.type("/inbox d")
    screen.wait_for("take a message back")


def test_sub_agents_are_shown_and_one_is_stopped_without_the_other(chat: Open) -> None:
    script = """
repeat = true
[[answers]]
when = "^delegate"
steps = [{ do = "call", name = "delegate", arguments = { tasks = [
    { task = "count the files" }, { task = "read for ever" },
] } }]
[[answers]]
when = "^delegate"
steps = [{ do = "say", text = "one of them was enough" }]
[[answers]]
when = "count the files"
steps = [{ do = "say", text = "there are three" }]
[[answers]]
when = "read for ever"
steps = [{ do = "say", text = "reading" }, { do = "pause", seconds = 600 }]
"""
    screen = chat(script=script)
    screen.wait_ready()
    screen.enter("delegate it")
    screen.wait_for("◆ t1_1_1.1 completed: there are three")
    screen.wait_for("◆ read for ever")
    screen.enter("/tasks")
    screen.wait_for("t1_1_1.2  read for ever")
    screen.enter("/tasks stop t1_1_1.2")
    screen.wait_for("◆ t1_1_1.2 stopped")
    screen.wait_for("one of them was enough")
    screen.wait_ready()


def test_enter_runs_the_command_that_is_chosen_in_the_menu(screen: Screen) -> None:
    screen.type("/stat")
    screen.wait_for("show model, state and usage")
    screen.type(DOWN)
    screen.wait_until(lambda: screen.line == "/status", "the command in the line")
    screen.type("\r")
    screen.wait_for("state    idle")
    assert not screen.line


def test_enter_on_one_that_needs_words_waits_for_them(screen: Screen) -> None:
    screen.type("/que")
    screen.wait_for("send this as its own turn, later")
    screen.type(DOWN + "\r")
    screen.wait_for("send this as its own turn, later", gone=True)
    screen.type("hello")
    screen.wait_until(lambda: screen.line == "/queue hello", "the words behind it")
    screen.type("\r")
    screen.wait_for("answered it")
