"""Returning to a session while it works: what runs is visible, named and can be acted on."""

import re

from bargein.cli.chat.activity import Activity
from bargein.cli.chat.paint import Painter
from bargein.cli.chat.view import View
from bargein.contracts.event import CallDetached, CallStarted, ChildStarted, Recorded, TurnStarted
from bargein.contracts.live import StepBegan
from bargein.contracts.receipt import StepKind
from bargein.contracts.tool import CallStatus, Effect
from tests.cli.conftest import Open
from tests.cli.screen import CTRL_B, CTRL_D
from tests.cli.test_before import LOG, LOOK, RUN, ended, log, numbered, said

SCRIPT = r"""
repeat = true
[[answers]]
when = "^run"
steps = [{ do = "call", name = "terminal", arguments = { command = "echo begun; sleep 120" } }]
[[answers]]
when = '^(?!run)'
steps = [{ do = "say", text = "answered it" }]
"""


def test_a_call_that_runs_is_seen_and_can_be_moved_to_the_background(chat: Open) -> None:
    screen = chat(script=SCRIPT)
    screen.wait_ready()
    screen.enter("run it")
    screen.wait_for("│ begun")
    screen.enter("/new other")
    screen.wait_ready()
    found = re.search(r"/sessions (chat-\w+) goes back", screen.text)
    assert found is not None
    screen.enter(f"/sessions {found[1]}")
    screen.wait_for("this is chat-")
    screen.wait_until(lambda: "│ begun" in screen.text.partition("this is chat-")[2], "its output")
    # It is told once: where it runs.
    assert screen.text.count("terminal  echo begun; sleep 120") == 1
    screen.enter("/tasks")
    screen.wait_until(lambda: screen.text.count("terminal  echo begun; sleep 120") == 2, "listed")
    screen.type(CTRL_B)
    screen.wait_for("terminal  echo begun; sleep 120 goes on in the background")


def recalled(*log: Recorded) -> Activity:
    """A hundred seconds after all of it."""
    activity = Activity(lambda: 1000.0)
    activity.recall([r for r in numbered(log) if isinstance(r, Recorded)], 100.0)
    return activity


def test_what_runs_is_found_in_the_log() -> None:
    started = CallStarted("t1", RUN, Effect.UNKNOWN, "make all")
    child = ChildStarted("t1", "c1", "s/c1.1", "look")
    begun = log(TurnStarted("t1", ("m1",)), said("t1", RUN, LOOK), started, child)
    activity = recalled(*begun)
    shown = [(str(call), call.since) for call in activity.calls.values()]
    assert shown == [("terminal  make all", 900.0), ("read_file  gone.txt", 900.0)]
    assert [each.task for each in activity.children.values()] == ["look"]
    assert activity.turn_began_at == 900.0
    assert list(recalled(*begun, *log(ended("c1", CallStatus.FINISHED, ""))).calls) == ["c2"]
    moved = recalled(*begun, *log(CallDetached("t1", "c1")))
    assert (list(moved.calls), list(moved.background)) == (["c2"], ["c1"])
    away = ChildStarted("t1", "c1", "s/c1.2", "look on", detached=True)
    beside = recalled(*begun, *log(CallDetached("t1", "c1"), away)).in_background
    assert beside == ["terminal  make all", "sub-agent  look on"]


def test_nothing_runs_when_all_is_over() -> None:
    activity = recalled(*LOG)
    assert (activity.calls, activity.background, activity.children) == ({}, {}, {})
    assert activity.turn_began_at is None


def test_the_end_of_a_call_that_came_before_one_looked_is_shown_once() -> None:
    """Its live end was missed; the log tells it."""
    scrolled: list[str] = []
    view = View(Painter(colour=False), scrolled.append, Activity(lambda: 0.0), lambda: 0.0, {})
    finished = log(said("t1", RUN), ended("c1", CallStatus.FINISHED, "make finished"))
    view.show(finished[0])
    view.show(StepBegan("t1", StepKind.TOOL, "terminal", "c1"))
    for _ in range(2):
        view.show(finished[1])
    assert [each.strip() for each in scrolled] == ["✓ terminal  make · 0.0 s"]


WORDS = "several words that do not fit into a line of such a narrow window as this one is"


def test_what_was_said_is_laid_out_for_the_window_that_it_is_shown_in(chat: Open) -> None:
    script = f'[[answers]]\nsteps = [{{ do = "say", text = "{WORDS}" }}]'
    screen = chat(script=script)
    screen.wait_ready()
    screen.enter("hello")
    screen.wait_for(WORDS)
    screen.type(CTRL_D)
    assert screen.exit_code() == 0
    again = chat("-c", script=script, columns=34)
    again.wait_ready()
    assert "several words that do not fit into" in again.text.split("\n")
    assert "a line of such a narrow window as" in again.text.split("\n")
