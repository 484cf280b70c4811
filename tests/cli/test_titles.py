"""What a call is about is shown with it, however quick it is."""

from bargein.cli.chat.naming import Naming
from bargein.contracts.event import (
    AssistantSaid,
    CallEnded,
    Event,
    Recorded,
    TurnOutcome,
    TurnSettled,
)
from bargein.contracts.live import StepBegan, StepOver, Stopping, TextDelta
from bargein.contracts.model import AssistantMessage, ToolCall
from bargein.contracts.receipt import StepKind
from bargein.contracts.tool import CallResult, CallStatus
from bargein.session.broadcast import Watched
from tests.cli.conftest import Open

SCRIPT = """
repeat = true
[[answers]]
when = "^read"
steps = [{ do = "call", name = "read_file", arguments = { path = "script.toml" } }]
[[answers]]
when = "^read"
steps = [{ do = "say", text = "it is read" }]
"""


def test_a_quick_call_is_shown_with_its_title(chat: Open) -> None:
    screen = chat(script=SCRIPT)
    screen.wait_ready()
    screen.enter("read it")
    screen.wait_for("it is read")
    assert "✓ read_file  script.toml · 0." in screen.text


def test_a_quick_call_is_told_with_its_title_line_by_line(chat: Open) -> None:
    screen = chat(script=SCRIPT, TERM="dumb")
    screen.wait_for("· /help")
    screen.enter("read it")
    screen.wait_for("it is read")
    assert "[read_file  script.toml ...]" in screen.text


BEGAN = StepBegan("t1", StepKind.TOOL, "look", "c1")
OVER = StepOver("t1", StepKind.TOOL, "look", "finished", "c1")
ASKED = Recorded(
    5, 0.0, AssistantSaid("t1", AssistantMessage((ToolCall("c1", "look", '{"at": "it"}'),)))
)
ENDED = Recorded(6, 0.0, CallEnded("t1", "c1", CallResult(CallStatus.FINISHED, ())))
NEXT = (StepBegan("t1", StepKind.MODEL, "m"), TextDelta("t1", "I saw it."))
SETTLED = Recorded(9, 0.0, TurnSettled("t1", TurnOutcome.COMPLETED))


def seen(naming: Naming, *events: Watched) -> list[Watched]:
    return [each for event in events for each in naming.in_order(event)]


def test_a_call_is_seen_after_what_asked_for_it_and_all_else_in_its_order() -> None:
    happened = (BEGAN, OVER, *NEXT, ASKED, ENDED, SETTLED)
    assert seen(Naming(), *happened) == [ASKED, BEGAN, OVER, *NEXT, ENDED, SETTLED]


def test_what_is_in_order_is_seen_at_once() -> None:
    for happened in (ASKED, BEGAN, OVER, *NEXT), (*NEXT, SETTLED):
        naming = Naming()
        for event in happened:
            assert seen(naming, event) == [event]
    assert seen(Naming([ASKED]), BEGAN) == [BEGAN]


def test_a_stop_is_seen_at_once() -> None:
    naming, stopping = Naming(), Stopping("t1")
    assert seen(naming, BEGAN, stopping) == [stopping]
    assert seen(naming, ASKED, SETTLED) == [ASKED, BEGAN, SETTLED]


def test_a_call_that_nothing_names_is_seen_in_the_end() -> None:
    """An agent of one's own may call what no model has asked for."""
    last: Event
    for last in (ENDED.event, SETTLED.event):
        ending = Recorded(7, 0.0, last)
        assert seen(Naming(), BEGAN, OVER, ending) == [BEGAN, OVER, ending]


def test_an_id_that_is_used_again_waits_for_its_own_name() -> None:
    assert seen(Naming([ASKED, ENDED]), BEGAN) == []
