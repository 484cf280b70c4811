"""`/retry` asks again what failed, whatever failed, also after a restart."""

from tests.cli.conftest import Open
from tests.cli.screen import CTRL_D, Screen

SCRIPT = """
[[answers]]
when = "^hard"
steps = [{ do = "fail", status = 400, message = "too hard today" }]
[[answers]]
when = "^hard"
steps = [{ do = "fail", status = 400, message = "still too hard" }]
[[answers]]
when = "^hard"
steps = [{ do = "say", text = "got it now" }]
"""


def asked_and_failed(chat: Open) -> Screen:
    screen = chat(script=SCRIPT)
    screen.wait_ready()
    screen.enter("hard question")
    screen.wait_for("too hard today")
    screen.wait_status("unanswered · Enter asks again")
    return screen


def test_a_turn_that_failed_is_retried_by_name_and_by_enter(chat: Open) -> None:
    screen = asked_and_failed(chat)
    assert "/retry asks again" in screen.text
    screen.enter("/retry")
    screen.wait_for("still too hard")
    screen.wait_status("unanswered")
    screen.enter("")
    screen.wait_for("got it now")
    screen.wait_ready()
    assert screen.text.count("> hard question") == 3
    screen.enter("/retry")
    screen.wait_for("neither failed nor crashed")


def test_so_it_is_after_a_restart(chat: Open) -> None:
    first = asked_and_failed(chat)
    first.type(CTRL_D)
    first.exit_code()
    # A script begins anew with each program.
    script = SCRIPT.rsplit("[[answers]]", maxsplit=1)[-1]
    again = chat("-c", script=f"[[answers]]{script}")
    again.wait_for("this failed: Enter asks again")
    again.wait_status("unanswered · Enter asks again")
    again.enter("/retry")
    again.wait_for("got it now")
    assert again.text.count("> hard question") == 2


def test_what_was_taken_back_is_not_asked_again(chat: Open) -> None:
    screen = asked_and_failed(chat)
    screen.enter("/undo")
    screen.wait_for("taken back: hard question")
    screen.wait_ready()
    screen.enter("/retry")
    screen.wait_for("neither failed nor crashed")
