"""Every row of the key table, pressed in a real terminal."""

from pathlib import Path

from tests.cli.conftest import SCRIPT, Open
from tests.cli.screen import (
    ALT_UP,
    CTRL_B,
    CTRL_C,
    CTRL_D,
    CTRL_G,
    CTRL_X,
    CTRL_Z,
    ESCAPE,
    PROGRAM,
    Screen,
)


def wait_for_answer_to(screen: Screen, words: str) -> None:
    screen.enter(words)
    screen.wait_for("waiting")


def test_enter_sends_what_was_typed(screen: Screen) -> None:
    screen.enter("hello")
    assert "> hello" in screen.wait_for("answered it")
    screen.wait_ready()


def test_enter_while_busy_steers_and_what_was_said_is_kept(screen: Screen) -> None:
    wait_for_answer_to(screen, "wait for me")
    assert "Enter steers" in screen.status
    screen.enter("another way")
    text = screen.wait_for("answered it")
    assert text.index("waiting") < text.index("> another way") < text.index("answered it")


def test_tab_queues_escape_stops_and_holds_the_queue_enter_goes_on(screen: Screen) -> None:
    wait_for_answer_to(screen, "wait for me")
    screen.type("later words\t")
    screen.wait_for("later words  queued · Alt-Up edits")
    screen.type(ESCAPE)
    text = screen.wait_for("stopped in")
    assert "stream closed · 1 held" in text
    screen.wait_for("later words  held · Enter continues")
    screen.enter("")
    screen.wait_for("answered it")


def test_escape_with_a_steer_pending_stops_and_sends_it_now(screen: Screen) -> None:
    screen.enter("run and stop")
    screen.wait_for("│ begun")
    screen.enter("see here")
    screen.wait_for("see here  after this step · Esc sends it now")
    screen.type(ESCAPE)
    screen.wait_for("stopped in")
    screen.wait_for("answered it")


def test_escape_closes_a_menu_and_stops_nothing(screen: Screen) -> None:
    wait_for_answer_to(screen, "wait for me")
    screen.type("/rec")
    screen.wait_for("the last stop, in full")
    screen.type(ESCAPE)
    text = screen.wait_for("the last stop, in full", gone=True)
    assert "working" in text
    assert screen.line == "/rec"


def test_ctrl_c_clears_the_line_and_nothing_else_then_it_stops(screen: Screen) -> None:
    wait_for_answer_to(screen, "wait for me")
    screen.type("half a thought")
    screen.wait_for("half a thought")
    screen.type(CTRL_C)
    text = screen.wait_for("half a thought", gone=True)
    assert "stopped" not in text
    assert "working" in text
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
    assert "↳ first words" in screen.text


def test_ctrl_b_moves_a_call_to_the_background_where_it_survives_a_stop(screen: Screen) -> None:
    screen.enter("run on")
    screen.wait_for("│ begun")
    screen.type(CTRL_B)
    screen.wait_for("went on without it")
    assert "1 in the background" in screen.wait_ready()
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
    screen.wait_ready()
    screen.enter("go")
    screen.wait_for("│ deaf")
    screen.type(CTRL_C)
    screen.wait_for("stopping")
    screen.type(CTRL_C)
    text = screen.wait_for("stopped in")
    took_ms = int(text.partition("stopped in ")[2].partition(" ms")[0])
    # The ladder of the signals it ignores takes half a second.
    assert took_ms < 450


def test_ctrl_c_when_idle_hints_and_leaves_the_second_time(chat: Open) -> None:
    screen = chat()
    screen.wait_ready()
    screen.type(CTRL_C)
    screen.wait_for("Ctrl-C again leaves")
    screen.type(CTRL_C)
    assert screen.exit_code() == 0
    assert "Shutting down" in screen.text


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
    assert "Enter queues" in screen.status
    assert "Ctrl-X stops" in screen.status
    screen.enter("for later")
    screen.wait_for("for later  queued")
    screen.type(CTRL_X)
    screen.wait_for("stopped in")
