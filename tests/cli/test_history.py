"""Up and Ctrl-R find earlier input, also after a restart; what was being typed meanwhile is not
lost."""

from tests.cli.conftest import Open
from tests.cli.screen import CTRL_C, CTRL_D, CTRL_R, ESCAPE, UP, Screen

SCRIPT = """
repeat = true
[[answers]]
when = "^wait"
steps = [{ do = "say", text = "waiting" }, { do = "pause", seconds = 600 }]
[[answers]]
steps = [{ do = "say", text = "answered it" }]
"""


def sent(screen: Screen, *messages: str) -> None:
    for words in messages:
        screen.enter(words)
        screen.wait_for(f"> {words}\n\nanswered it")
        screen.wait_ready()


def test_ctrl_r_finds_what_was_sent_also_in_an_earlier_program(chat: Open) -> None:
    first = chat(script=SCRIPT)
    first.wait_ready()
    sent(first, "about apples", "about pears", "about plums")
    first.type(CTRL_D)
    first.exit_code()
    screen = chat(script=SCRIPT)
    screen.wait_ready()
    screen.type(f"{CTRL_R}about")
    screen.wait_for("search back: about")
    screen.wait_for("> about plums")
    screen.wait_status("Enter takes it · Ctrl-C leaves it")
    screen.type(CTRL_R)
    screen.wait_for("> about pears")
    screen.type("\r")
    screen.wait_until(lambda: screen.line == "about pears", "what was found, in the line")
    screen.wait_for("search back", gone=True)
    assert "answered it" not in screen.text
    screen.type("\r")
    screen.wait_for("answered it")


def test_ctrl_c_leaves_the_search_and_the_line_is_as_it_was(chat: Open) -> None:
    screen = chat(script=SCRIPT)
    screen.wait_ready()
    sent(screen, "about apples")
    screen.type(f"half a thought{CTRL_R}app")
    screen.wait_for("search back: app")
    screen.type(CTRL_C)
    screen.wait_until(lambda: screen.line == "half a thought", "the line as it was")
    assert "search back" not in screen.text


def test_escape_ends_the_search_and_stops_nothing(chat: Open) -> None:
    screen = chat(script=SCRIPT)
    screen.wait_ready()
    sent(screen, "about apples")
    screen.enter("wait for it")
    screen.wait_for("waiting")
    screen.type(f"{CTRL_R}app")
    screen.wait_for("search back: app")
    screen.type(ESCAPE)
    screen.wait_until(lambda: screen.line == "about apples", "what was found")
    screen.wait_status("working")
    screen.type(ESCAPE)
    screen.wait_for("stopped in")


def test_a_draft_is_back_after_something_older_was_sent(chat: Open) -> None:
    screen = chat(script=SCRIPT)
    screen.wait_ready()
    sent(screen, "about apples")
    screen.type("half a thought")
    screen.wait_until(lambda: screen.line == "half a thought", "the draft")
    screen.type(UP)
    screen.wait_until(lambda: screen.line == "about apples", "the older one")
    screen.type("\r")
    screen.wait_until(
        lambda: screen.text.count("answered it") == 2 and screen.line == "half a thought",
        "the draft again",
    )


def test_several_lines_come_back_as_they_were(chat: Open) -> None:
    first = chat(script=SCRIPT)
    first.wait_ready()
    first.type("one line\nand another")
    first.wait_for("and another")
    first.type("\r")
    first.wait_for("answered it")
    first.type(CTRL_D)
    first.exit_code()
    screen = chat(script=SCRIPT)
    screen.wait_ready()
    screen.type(UP)
    screen.wait_for("and another")
    screen.type("\r")
    screen.wait_for("answered it")
    assert "> one line\n> and another" in screen.text
