"""Every row of the key table, pressed in a real terminal."""

import re
import time
from pathlib import Path

import pexpect

from tests.cli.conftest import SCRIPT, Open
from tests.cli.screen import (
    ALT_UP,
    CTRL_B,
    CTRL_C,
    CTRL_D,
    CTRL_G,
    CTRL_L,
    CTRL_X,
    CTRL_Z,
    ESCAPE,
    PROGRAM,
    Screen,
    typed_late,
)

STOPPED_IN = re.compile(r"stopped in (\d+) ms")


def wait_for_answer_to(screen: Screen, words: str) -> None:
    screen.enter(words)
    screen.wait_for("waiting")


def test_enter_sends_what_was_typed(screen: Screen) -> None:
    screen.enter("hello")
    assert "> hello" in screen.wait_for("answered it")
    screen.wait_ready()


def test_enter_while_busy_steers_and_what_was_said_is_kept(screen: Screen) -> None:
    wait_for_answer_to(screen, "wait for me")
    screen.wait_status("Enter steers")
    screen.enter("another way")
    text = screen.wait_for("answered it")
    assert text.index("waiting") < text.index("> another way") < text.index("answered it")


def test_tab_queues_escape_stops_and_holds_the_queue_enter_goes_on(screen: Screen) -> None:
    wait_for_answer_to(screen, "wait for me")
    screen.type("later words\t")
    screen.wait_for("later words  queued · Alt-Up edits")
    screen.type(ESCAPE)
    screen.wait_for("stopped in")
    screen.wait_for("stream closed · 1 held")
    screen.wait_for("later words  held · Enter continues")
    screen.wait_until(lambda: screen.status.startswith(" 1 held · Enter continues"), "the status")
    screen.enter("")
    screen.wait_for("answered it")


def test_enter_goes_on_with_what_is_held_also_while_the_stop_settles(chat: Open) -> None:
    deaf = "trap '' INT TERM; echo begun; while :; do sleep 0.05; done"
    script = f"""
[[answers]]
steps = [{{ do = "call", name = "terminal", arguments = {{ command = "{deaf}" }} }}]
[[answers]]
when = "later words"
steps = [{{ do = "say", text = "answered it" }}]
"""
    screen = chat(script=script)
    screen.wait_ready()
    screen.enter("go")
    screen.wait_for("│ begun")
    screen.type("later words\t")
    screen.wait_for("later words  queued")
    screen.type(ESCAPE)
    screen.wait_until(
        lambda: "held · Enter continues" in screen.text and "stopping" in screen.status,
        "what is held, while it stops",
    )
    screen.enter("")
    screen.wait_for("answered it")


def test_only_the_last_that_waits_is_said_to_be_taken_back_by_a_key(screen: Screen) -> None:
    wait_for_answer_to(screen, "wait for me")
    for words in ("one", "two", "three", "four"):
        screen.type(f"{words}\t")
        screen.wait_for(f"{words}  queued · Alt-Up edits")
    assert screen.text.count("Alt-Up") == 1
    screen.type("five\t")
    screen.wait_for("and 1 more · Alt-Up edits the last")
    assert screen.text.count("Alt-Up") == 1


def test_escape_holds_a_pending_steer_and_enter_sends_it(screen: Screen) -> None:
    screen.enter("run and stop")
    screen.wait_for("│ begun")
    screen.enter("see here")
    screen.wait_for("see here  after this step · Esc stops and holds it")
    screen.type(ESCAPE)
    screen.wait_for("stopped in")
    screen.wait_for("1 held")
    screen.wait_for("see here  held · Enter continues")
    screen.wait_until(lambda: screen.status.startswith(" 1 held · Enter continues"), "the status")
    assert "answered it" not in screen.text
    screen.enter("")
    screen.wait_for("answered it")


def test_a_stop_in_words_holds_a_pending_steer_as_escape_does(screen: Screen) -> None:
    screen.enter("run and stop")
    screen.wait_for("│ begun")
    screen.enter("see here")
    screen.wait_for("see here  after this step")
    screen.enter("/stop")
    screen.wait_for("see here  held · Enter continues")
    screen.wait_until(lambda: screen.status.startswith(" 1 held · Enter continues"), "the status")
    assert "answered it" not in screen.text
    screen.enter("/continue")
    screen.wait_for("answered it")


def test_escape_closes_a_menu_and_stops_nothing(screen: Screen) -> None:
    wait_for_answer_to(screen, "wait for me")
    screen.type("/rec")
    screen.wait_for("show the last stop in full")
    screen.type(ESCAPE)
    screen.wait_for("show the last stop in full", gone=True)
    screen.wait_until(lambda: "working" in screen.status and screen.line == "/rec", "all else")
    assert "stopped" not in screen.text


def test_ctrl_c_clears_the_line_and_nothing_else_then_it_stops(screen: Screen) -> None:
    wait_for_answer_to(screen, "wait for me")
    screen.type("half a thought")
    screen.wait_for("half a thought")
    screen.type(CTRL_C)
    screen.wait_for("half a thought", gone=True)
    screen.wait_status("working")
    assert "stopped" not in screen.text
    screen.type(CTRL_C)
    screen.wait_for("stopped in")
    screen.wait_ready()


def test_alt_up_takes_the_last_queued_message_back_into_the_line(screen: Screen) -> None:
    wait_for_answer_to(screen, "wait for me")
    screen.type("first words\t")
    screen.type("queued words\t")
    screen.wait_for("2 waiting")
    screen.type(ALT_UP)
    screen.wait_for("1 waiting")
    screen.wait_until(lambda: screen.line == "queued words", "the words in the line")
    screen.wait_for("↳ first words")


def test_ctrl_b_moves_a_call_to_the_background_where_it_survives_a_stop(screen: Screen) -> None:
    screen.enter("run on")
    screen.wait_for("│ begun")
    screen.type(CTRL_B)
    screen.wait_for("went on without it")
    screen.wait_ready()
    screen.wait_for("1 in the background")
    screen.enter("/tasks")
    screen.wait_for("echo begun; sleep 120  ")
    screen.wait_for("s, in the background")
    screen.enter("/tasks stop t1")
    screen.wait_for("stopped in")
    screen.wait_until(lambda: "background" not in screen.status, "nothing in the background")


def test_several_lines_by_alt_enter_and_ctrl_j(screen: Screen) -> None:
    screen.type("one\x1b\rtwo\nthree")
    screen.wait_for("three")
    screen.type("\r")
    text = screen.wait_for("answered it")
    assert "> one\n> two\n> three" in text


def test_the_second_ctrl_c_hurries_the_kill(chat: Open) -> None:
    script = """
repeat = true
[[answers]]
steps = [{ do = "call", name = "python", arguments = { code = '''
import signal, time
for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(each, signal.SIG_IGN)
print("deaf", flush=True)
time.sleep(100)
''' } }]
"""
    screen = chat(script=script)
    # The ladder of the signals it ignores takes half a second; a busy machine may, too, but not
    # each time.
    assert any(_hurried_ms(screen) < 450 for _ in range(5))


def _hurried_ms(screen: Screen) -> int:
    screen.type(CTRL_L)
    screen.wait_for("stopped in", gone=True)
    screen.wait_ready()
    screen.enter("go")
    screen.wait_for("│ deaf")
    screen.type(CTRL_C)
    screen.wait_for("stopping")
    screen.type(CTRL_C)
    screen.wait_until(lambda: STOPPED_IN.search(screen.text) is not None, "the stop")
    told = STOPPED_IN.search(screen.text)
    assert told is not None
    return int(told[1])


def test_ctrl_c_when_idle_hints_and_leaves_the_second_time(chat: Open) -> None:
    screen = chat()
    screen.wait_ready()
    screen.type(CTRL_C)
    screen.wait_for("Ctrl-C again leaves")
    # Again, should more time have passed since the first than the hint is good for.
    assert any(_leaves_by_ctrl_c(screen) for _ in range(3))
    assert screen.exit_code() == 0


def _leaves_by_ctrl_c(screen: Screen) -> bool:
    screen.type(CTRL_C)
    deadline = time.monotonic() + 10
    try:
        while "Shutting down" not in screen.text and time.monotonic() < deadline:
            screen.read(0.2)
    except pexpect.EOF:
        pass
    return "Shutting down" in screen.text


def test_an_editor_writes_into_the_line(chat: Open) -> None:
    screen = chat(EDITOR="sh -c 'echo from the editor >> \"$0\"'")
    screen.wait_ready()
    screen.type("begun by hand, ")
    screen.type(CTRL_G)
    screen.wait_until(lambda: screen.line == "begun by hand, from the editor", "what it wrote")


def test_it_is_suspended_to_the_shell_and_comes_back(tmp_path: Path) -> None:
    screen = Screen(home=tmp_path, script=SCRIPT, command=("bash", "--norc", "-i"), PS1="shell:")
    try:
        screen.enter(f"{PROGRAM} chat")
        screen.wait_ready()
        screen.type("half a thought")
        screen.type(CTRL_Z)
        screen.wait_for("Stopped")
        screen.enter("fg")
        screen.wait_until(lambda: screen.line == "half a thought", "the line again")
        screen.enter("")
        screen.wait_for("answered it")
        screen.type(CTRL_D)
        screen.wait_for("Shutting down")
        screen.wait_until(lambda: screen.status.startswith("shell:"), "the shell again")
    finally:
        screen.close()


def test_keys_can_be_others_and_enter_another_mode(chat: Open) -> None:
    config = 'chat.enter = "queue"\n[keys]\nstop = "ctrl-x"\nbackground = ["f5", "alt-b"]\n'
    screen = chat(config=config)
    screen.wait_ready()
    wait_for_answer_to(screen, "wait for me")
    screen.wait_status("Enter queues")
    screen.wait_status("Ctrl-X stops")
    screen.enter("for later")
    screen.wait_for("for later  queued")
    screen.type(CTRL_X)
    screen.wait_for("stopped in")


def test_every_hint_names_the_key_that_is_set(chat: Open) -> None:
    config = """[keys]
send = "ctrl-t"
stop = "ctrl-x"
edit_last = "f6"
interrupt = "ctrl-q"
"""
    ctrl_q, ctrl_t = "\x11", "\x14"
    screen = chat(config=config)
    screen.wait_ready()
    screen.type(f"!echo up; sleep 99{ctrl_t}")
    screen.wait_status("running your command")
    screen.wait_for("│ up")
    screen.type(f"!echo too{ctrl_t}")
    screen.wait_for("a command of yours is running; Ctrl-X stops it")
    screen.type(CTRL_X)
    screen.wait_for("[stopped in")
    screen.type(f"danger{ctrl_t}")
    screen.wait_status("type a number and Ctrl-T")
    screen.wait_until(lambda: typed_late(screen, "2", "Ctrl-T answers: deny"), "the answer")
    screen.type(ctrl_t)
    screen.wait_for("so be it")
    screen.wait_ready()
    screen.type(f"run and stop{ctrl_t}")
    screen.wait_for("│ begun")
    screen.type(f"see here{ctrl_t}")
    screen.wait_for("see here  after this step · Ctrl-X stops and holds it")
    screen.type("later words\t")
    screen.wait_for("later words  queued · F6 edits")
    screen.type(CTRL_X)
    screen.wait_for("see here  held · Ctrl-T continues")
    screen.wait_status("2 held · Ctrl-T continues")
    screen.type(ctrl_t)
    screen.wait_until(lambda: screen.text.count("answered it") == 2, "both answers")
    screen.wait_ready()
    screen.type(f"wait for me{ctrl_t}")
    screen.wait_for("waiting")
    screen.type("much later\t")
    screen.wait_for("much later  queued")
    screen.type(CTRL_X)
    screen.wait_for("much later  held · Ctrl-T continues")
    screen.type(ctrl_t)
    screen.wait_until(lambda: screen.text.count("answered it") == 3, "what was held")
    screen.wait_ready()
    screen.type(ctrl_q)
    screen.wait_for("Ctrl-Q again leaves")
