"""Talking to a session from the page, in a real browser: against the real server, a scripted model
and real commands."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator

import psutil
import pytest
from playwright.sync_api import Browser, Page, WebSocketRoute, expect

from bargein.contracts.event import QuestionClosed, TurnSettled
from bargein.models.script import Answer, Call, Pause, Say, Wait
from tests.server.page_house import House
from tests.server.page_visit import WITHIN_MS, Visit, until

TWO_FRAMES = "() => new Promise((on) => requestAnimationFrame(() => requestAnimationFrame(on)))"


def command(text: str) -> Call:
    return Call("terminal", {"command": text})


def processes_with(word: str) -> list[psutil.Process]:
    running = psutil.process_iter(["cmdline"])
    return [each for each in running if word in (each.info["cmdline"] or [])]


def test_what_is_typed_while_it_streams_steers_it(house: House, visit: Visit) -> None:
    house.script(
        [Say("One "), Say("two. ", 0.01), Wait("steered 1"), Say("never")], [Say("Changed.")]
    )
    visit.say("Count")
    expect(visit.answers.last).to_have_text("One two. ")
    visit.words.type("Rather in words")
    expect(visit.words).to_have_value("Rather in words")
    visit.words.press("Enter")
    expect(visit.answers.last).to_have_text("Changed.")
    expect(visit.answers).to_have_count(2)
    expect(visit.page.get_by_text("cut off here; the text so far is kept")).to_be_visible()
    expect(visit.page.locator(".message .how")).to_have_text("↳ steered in")
    expect(visit.state).to_have_text("Ready")


def test_the_field_is_as_high_as_what_is_in_it(visit: Visit) -> None:
    hidden = "(field) => field.scrollHeight - field.clientHeight"
    assert visit.words.evaluate(hidden) == 0
    visit.words.fill("One\nTwo\nThree")
    visit.page.reload()
    expect(visit.words).to_have_value("One\nTwo\nThree")
    assert visit.words.evaluate(hidden) == 0


def test_how_calls_came_out_is_seen_by_their_marks(house: House, visit: Visit) -> None:
    house.script(
        [command("exit 3")], [command("true")], [Call("telepathy", {"to": "you"})], [Say("Done.")]
    )
    visit.say("Go")
    expect(visit.answers.last).to_have_text("Done.")
    calls = visit.page.locator(".talk .call")
    expect(calls.nth(0).locator(".dot")).to_have_class("dot failed")
    expect(calls.nth(0).locator(".came")).to_have_text("exit code 3")
    expect(calls.nth(1).locator(".dot")).to_have_class("dot finished")
    expect(calls.nth(2)).to_contain_text("refused: There is no tool named 'telepathy'")
    visit.page.reload()
    expect(calls.nth(0).locator(".dot")).to_have_class("dot failed")


def test_what_became_of_a_stop_opens_in_sight(house: House, visit: Visit) -> None:
    house.script([Say("A line.\n\n" * 40), Wait("never")])
    visit.say("Talk")
    expect(visit.answers.last).to_contain_text("A line.")
    visit.words.press("Escape")
    expect(visit.cut).to_contain_text("stopped in")
    visit.cut.click()
    expect(visit.page.locator(".cut .details")).to_be_in_viewport(ratio=0.9)


def test_escape_stops_the_turn_and_all_it_started(house: House, visit: Visit) -> None:
    house.script([Say("I wait."), command("sleep 601.25 & sleep 602.25")], [Say("After.")])
    visit.say("Wait for it")
    expect(visit.calls.first).to_contain_text("sleep 601.25")
    until(lambda: len(processes_with("601.25") + processes_with("602.25")) == 2, "they run")
    visit.queue("And then this")
    visit.words.press("Escape")
    expect(visit.cut).to_contain_text("stopped in")
    expect(visit.cut).to_contain_text("processes), may have happened half · 1 held")
    assert processes_with("601.25") + processes_with("602.25") == []
    expect(visit.page.get_by_text("1 message held by your stop")).to_be_visible()
    visit.cut.click()
    details = visit.page.locator(".cut .details")
    expect(details).to_contain_text("nobody is left")
    expect(details.locator("svg .interrupt-line")).to_have_count(1)
    visit.page.get_by_role("button", name="Continue").click()
    expect(visit.answers.last).to_have_text("After.")
    expect(visit.page.locator(".inbox")).to_be_hidden()


def test_a_stop_right_after_the_message_is_honoured(house: House, visit: Visit) -> None:
    house.script([Say("I begin"), Wait("stopped early")])
    visit.words.fill("Go")
    visit.page.evaluate("""() => {
        const words = document.getElementById("words");
        for (const key of ["Enter", "Escape"]) {
            words.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
        }
    }""")
    expect(visit.cut).to_contain_text("stopped in")
    expect(visit.state).to_have_text("Ready")


def test_control_enter_redirects(house: House, visit: Visit) -> None:
    house.script([Say("A long story", 0.0), Wait("redirected")], [Say("A short one.")])
    visit.say("Tell me a story")
    expect(visit.answers.last).to_have_text("A long story")
    visit.say("A short one", "Control+Enter")
    expect(visit.answers.last).to_have_text("A short one.")
    expect(visit.cut).to_contain_text("redirected in")
    expect(visit.page.locator(".message .how")).to_contain_text("redirected")
    expect(visit.state).to_have_text("Ready")
    outcomes = [each.event.outcome for each in visit.log() if isinstance(each.event, TurnSettled)]
    assert outcomes == ["stopped", "completed"]


def test_a_turn_that_was_rolled_back_is_marked(house: House, visit: Visit) -> None:
    house.script([Say("Wrong way"), Wait("rolled back")], [Say("Right way.")])
    visit.say("Go")
    expect(visit.answers.last).to_have_text("Wrong way")
    visit.words.fill("The other way")
    visit.page.get_by_role("radio", name="Roll back").click()
    visit.words.press("Enter")
    expect(visit.answers.last).to_have_text("Right way.")
    expect(visit.page.locator(".answer.hidden-turn .prose")).to_have_text("Wrong way")
    expect(visit.page.locator(".answer").last).not_to_have_class("hidden-turn")


def test_the_queue_is_reordered_changed_and_taken_from(house: House, visit: Visit) -> None:
    house.script([Say("Busy"), Wait("queued")], [Say("Got it.")], [Say("Done.")])
    visit.say("Go")
    expect(visit.answers.last).to_have_text("Busy")
    for text in ("first", "second", "third"):
        visit.queue(text)
    expect(visit.waiting).to_have_text(["first", "second", "third"])
    handles = visit.page.locator(".waiting .handle")

    handles.nth(2).press("ArrowUp")
    expect(visit.waiting).to_have_text(["first", "third", "second"])

    top, bottom = handles.nth(2).bounding_box(), handles.nth(0).bounding_box()
    assert top is not None
    assert bottom is not None
    visit.page.mouse.move(top["x"] + 5, top["y"] + 5)
    visit.page.mouse.down()
    visit.page.mouse.move(bottom["x"] + 5, bottom["y"] - 2, steps=3)
    visit.page.mouse.up()
    expect(visit.waiting).to_have_text(["second", "first", "third"])

    visit.page.get_by_role("button", name="Edit “first”").click()
    visit.page.get_by_label("Change the message").fill("first, but better")
    visit.page.get_by_label("Change the message").press("Enter")
    expect(visit.waiting).to_have_text(["second", "first, but better", "third"])

    visit.page.get_by_role("button", name="Remove “third”").click()
    expect(visit.waiting).to_have_text(["second", "first, but better"])
    expect(visit.page.locator(".withdrawn s")).to_have_text("third")

    house.open_gate("queued")
    expect(visit.answers).to_have_text(["Busy", "Got it.", "Done."])
    expect(visit.page.locator(".message .words")).to_have_text(
        ["Go", "second", "first, but better"]
    )


def test_the_last_waiting_message_comes_back_into_the_field(house: House, visit: Visit) -> None:
    house.script([Say("Busy"), Wait("taken back")])
    visit.say("Go")
    expect(visit.answers.last).to_have_text("Busy")
    visit.queue("Not yet right")
    visit.words.press("Alt+ArrowUp")
    expect(visit.words).to_have_value("Not yet right")
    expect(visit.page.locator(".inbox")).to_be_hidden()
    house.open_gate("taken back")
    expect(visit.state).to_have_text("Ready")


def test_one_call_is_stopped_and_the_turn_goes_on(house: House, visit: Visit) -> None:
    house.script([command("sleep 611.5"), command("echo half; sleep 612.5")], [Say("One of two.")])
    visit.say("Both")
    stopped = visit.calls.filter(has_text="sleep 611.5")
    moved = visit.calls.filter(has_text="sleep 612.5")
    expect(moved.locator("pre")).to_contain_text("half")
    expect(moved.locator(".elapsed")).to_contain_text("s")
    stopped.get_by_role("button", name="Stop sleep 611.5").click()
    expect(stopped).to_contain_text("stopped")
    assert processes_with("611.5") == []

    moved.get_by_role("button", name="to the background").click()
    expect(moved).to_contain_text("in the background")
    expect(visit.answers.last).to_have_text("One of two.")
    expect(visit.cut).to_have_count(0)
    until(lambda: len(processes_with("612.5")) == 1, "it runs")
    running = visit.page.get_by_label("What is going on").locator(".running-row")
    expect(running).to_have_count(1)
    house.script([Say("I heard.")])
    running.get_by_role("button", name="Stop").click()
    expect(visit.page.locator(".waiting .lane")).to_have_text("news")
    assert processes_with("612.5") == []
    visit.page.get_by_role("button", name="Continue").click()
    expect(visit.answers.last).to_have_text("I heard.")


def test_an_approval_shows_all_of_it_and_hides_nothing(house: House, visit: Visit) -> None:
    """The middle of a long command, and characters that would turn the rest around."""
    long = " && ".join(f"rm -rf part{number:03}" for number in range(300))
    house.script([command(f"{long} # \u202egnp.\u200bx \u05d0 1 \u05d1")], [Say("Asked.")])
    visit.say("Clean up")
    question = visit.page.locator(".question")
    for words in ("part000", "part150", "part299 # <U+202E>gnp.<U+200B>x"):
        expect(question.locator("pre")).to_contain_text(words)
    assert "\u202e" not in visit.page.locator("body").inner_text()
    # Letters that are read from right to left stand in the order in which they are written.
    order = question.locator("pre").evaluate("each => getComputedStyle(each).unicodeBidi")
    assert order == "bidi-override"
    question.get_by_role("button", name="Deny").click()
    expect(visit.answers.last).to_have_text("Asked.")


def test_an_approval_is_given_and_refused_in_place(house: House, visit: Visit) -> None:
    again = [command("rm -rf nothing-here")]
    house.script(again, [Say("It ran.")], again, [Say("It did not.")])
    visit.say("Clean up")
    question = visit.page.locator(".question")
    expect(question).to_contain_text("rm -rf nothing-here")
    expect(visit.calls.first).to_contain_text("needs your answer")
    expect(visit.state).to_have_text("Needs your answer")
    # The list alone knows it of a session that is not on the screen.
    asking = visit.page.locator(".session-row").filter(has_text="needs your answer")
    asking_id = visit.session
    visit.new_session()
    expect(asking.get_by_role("link")).to_have_attribute("href", f"#/s/{asking_id}")
    asking.get_by_role("link").click()
    question.get_by_role("button", name="Allow").click()
    expect(visit.answers.last).to_have_text("It ran.")
    expect(visit.state).to_have_text("Ready")
    expect(asking).to_have_count(0)
    expect(question).to_contain_text("Allowed · operator")
    visit.say("Again")
    visit.page.locator(".question").last.get_by_placeholder("Or say why not").fill("I need it")
    visit.page.keyboard.press("Enter")
    expect(visit.answers.last).to_have_text("It did not.")
    expect(visit.page.locator(".question").last).to_contain_text("Not allowed")


def test_a_question_is_answered_by_a_choice_and_in_words(house: House, visit: Visit) -> None:
    colour = Call("ask", {"question": "Which colour?", "choices": ["red", "blue"]})
    house.script([colour], [Call("ask", {"question": "And why?"})], [Say("So be it.")])
    visit.say("Paint it")
    question = visit.page.locator(".question").last
    expect(question).to_contain_text("Which colour?")
    question.get_by_role("button", name="blue").click()
    expect(question).to_contain_text("And why?")
    question.get_by_placeholder("Your answer").fill("Because of the sea")
    visit.page.keyboard.press("Enter")
    expect(visit.answers.last).to_have_text("So be it.")
    answers = [each.event.answer for each in visit.log() if isinstance(each.event, QuestionClosed)]
    assert answers == ["blue", "Because of the sea"]


def test_sub_agents_are_seen_opened_and_stopped(house: House, visit: Visit) -> None:
    tasks = [{"task": "paint the fence"}, {"task": "mow the lawn"}]
    house.script(
        Answer([Call("delegate", {"tasks": tasks})], "both at once"),
        Answer([Say("Painting."), Wait("fence")], "fence"),
        Answer([Say("Mowing."), Wait("lawn"), Say(" Mown.")], "lawn"),
        Answer([Say("One was stopped.")]),
    )
    visit.say("Do both at once")
    agents = visit.page.locator("#now .agent")
    expect(agents).to_have_count(2)
    expect(visit.page.locator(".timeline rect.bar-child")).to_have_count(2)
    agents.get_by_role("link", name="mow the lawn").click()
    expect(visit.answers).to_have_text(["Mowing."])
    visit.page.get_by_role("link", name="parent").click()
    expect(agents).to_have_count(2)
    agents.get_by_role("button", name="Stop paint the fence").click()
    expect(agents.filter(has_text="fence").locator(".dot")).to_have_class("dot stopped")
    expect(agents.filter(has_text="lawn").locator(".dot")).to_have_class("dot running")
    house.open_gate("lawn")
    expect(visit.answers.last).to_have_text("One was stopped.")
    expect(agents.filter(has_text="lawn").locator(".dot")).to_have_class("dot completed")
    expect(visit.cut).to_have_count(0)


def test_the_sub_agents_of_a_sub_agent_stand_below_it(house: House, visit: Visit) -> None:
    house.script(
        Answer([Call("delegate", {"tasks": [{"task": "see to the house"}]})], "everything"),
        Answer([Call("delegate", {"tasks": [{"task": "sweep the roof"}]})], "house"),
        Answer([Say("Sweeping."), Wait("roof")], "roof"),
    )
    visit.say("Do everything")
    below = visit.page.locator("#now .agents ul .agent")
    expect(below).to_contain_text("sweep the roof")
    below.get_by_role("link").click()
    expect(visit.answers).to_have_text(["Sweeping."])
    visit.words.press("Escape")
    expect(visit.cut).to_contain_text("stopped in")


def test_a_plain_message_answers_no_question(house: House, visit: Visit) -> None:
    house.script([command("rm -rf nothing-here")], [Say("Fine.")])
    visit.say("Clean up")
    expect(visit.page.get_by_role("button", name="Allow")).to_be_visible()
    visit.say("allow")
    expect(visit.waiting).to_have_text(["allow"])
    visit.page.get_by_role("button", name="Deny").click()
    expect(visit.answers.last).to_have_text("Fine.")


def test_a_pause_holds_it_at_its_next_step(house: House, visit: Visit) -> None:
    house.script([command("until [ -e go-on ]; do sleep 0.02; done")], [Say("On it goes.")])
    visit.say("Go")
    expect(visit.calls.first).to_contain_text("until [ -e go-on ]")
    visit.page.get_by_role("button", name="Pause").click()
    expect(visit.state).to_have_text("Paused at the next step")
    (house.workspace / "go-on").touch()
    expect(visit.calls.first.locator(".dot")).to_have_class("dot finished")
    expect(visit.answers).to_have_count(0)
    visit.page.get_by_role("button", name="Resume").click()
    expect(visit.answers.last).to_have_text("On it goes.")


class Held:
    """Holds back the reply to one operation on the sockets that a page opens from now on, and lets
    everything else through."""

    def __init__(self, page: Page, operation: str) -> None:
        self._operation = operation
        self._ids: set[str] = set()
        self._open = False
        self._replies: list[Callable[[], None]] = []
        page.route_web_socket(re.compile(r"/socket\?"), self._route)

    def _route(self, socket: WebSocketRoute) -> None:
        server = socket.connect_to_server()

        def up(text: str | bytes) -> None:
            # A page says something as soon as its socket is open, and before that it uses HTTP.
            self._open = True
            command = json.loads(text)
            if command["do"] == self._operation:
                self._ids.add(command["id"])
            server.send(text)

        def down(text: str | bytes) -> None:
            told = json.loads(text)
            if told.get("type") == "reply" and told["id"] in self._ids:
                self._replies.append(lambda: socket.send(text))
            else:
                socket.send(text)

        socket.on_message(up)
        server.on_message(down)

    def wait_open(self, page: Page) -> None:
        """Until the page sends by a socket."""
        _wait(page, lambda: self._open, "no socket is open")

    def wait(self, page: Page) -> None:
        """Until a reply is held."""
        _wait(page, lambda: bool(self._replies), "no reply came")

    def release(self) -> None:
        for send in self._replies:
            send()


def _wait(page: Page, holds: Callable[[], bool], complaint: str) -> None:
    deadline = time.monotonic() + WITHIN_MS / 1000
    while not holds():
        assert time.monotonic() < deadline, complaint
        page.wait_for_timeout(10)


@pytest.fixture
def own_tab(house: House, browser: Browser) -> Iterator[Visit]:
    """A page of one's own, signed in."""
    visit = Visit.begin(house, browser)
    visit.enter()
    yield visit
    visit.close()


def test_the_answer_to_a_pause_that_comes_when_the_turn_is_over_changes_nothing(
    house: House, own_tab: Visit
) -> None:
    visit = own_tab
    held = Held(visit.page, "pause")
    visit.session = visit.new_session()
    held.wait_open(visit.page)
    house.script([Wait("held")])
    visit.say("Go")
    house.wait_for_gate("held")
    visit.page.get_by_role("button", name="Pause").click()
    held.wait(visit.page)
    visit.words.press("Escape")
    expect(visit.state).to_have_text("Ready")
    held.release()
    visit.page.evaluate(TWO_FRAMES)
    expect(visit.state).to_have_text("Ready")


def test_a_message_that_the_log_tells_of_before_its_sending_is_answered_is_shown_once(
    house: House, own_tab: Visit
) -> None:
    visit = own_tab
    held = Held(visit.page, "send_message")
    visit.session = visit.new_session()
    held.wait_open(visit.page)
    house.script([Say("Heard.")])
    visit.say("Only once")
    held.wait(visit.page)
    expect(visit.answers).to_have_text(["Heard."])
    shown = visit.page.locator(".message .words").all_inner_texts()
    held.release()
    visit.page.evaluate(TWO_FRAMES)
    assert shown == ["Only once"]
    assert visit.page.locator(".message .words").all_inner_texts() == ["Only once"]


def test_the_timeline_shows_who_was_at_work_and_the_interrupt(house: House, visit: Visit) -> None:
    house.script(
        [Say("Two."), Pause(0.05), command("sleep 621.5"), command("sleep 622.5")],
        [Wait("timeline")],
    )
    visit.say("Two things")
    timeline = visit.page.locator(".timeline svg")
    expect(timeline.locator("rect.bar-tool")).to_have_count(2)
    # A bar is there before its command is: one that was not started ends in another way.
    until(lambda: len(processes_with("621.5") + processes_with("622.5")) == 2, "they run")
    visit.words.press("Escape")
    expect(timeline.locator(".interrupt-line")).to_have_count(1)
    expect(timeline.locator("circle.end-stopped")).to_have_count(2)
    expect(timeline.locator("rect.bar-model")).to_have_count(1)
    expect(timeline).to_have_attribute("aria-label", re.compile("interrupted after"))

    # The same from the log alone, and for a model that was stopped before it said anything.
    visit.page.reload()
    expect(timeline.locator("circle.end-stopped")).to_have_count(2)
    visit.say("Once more")
    house.wait_for_gate("timeline")
    expect(visit.state).to_contain_text("Working")
    visit.words.press("Escape")
    expect(visit.state).to_have_text("Ready")
    visit.page.reload()
    expect(timeline.locator("circle.end-stopped")).to_have_count(1)
    expect(timeline.locator("[data-bar=model-1] circle.end-stopped")).to_have_count(1)


def test_everything_can_be_done_with_keys_alone(house: House, visit: Visit) -> None:
    press = visit.page.keyboard.press
    with visit.following():
        press("Alt+n")
    assert not visit.page.url.endswith(visit.session)
    expect(visit.words).to_be_focused()
    house.script([Say("Busy"), Wait("keys")], [Say("Next.")])
    visit.page.keyboard.type("Begin")
    press("Enter")
    expect(visit.answers.last).to_have_text("Busy")
    visit.page.keyboard.type("later")
    press("Tab")
    press("Tab")
    expect(visit.page.get_by_role("radio", name="Queue")).to_be_checked()
    press("Enter")
    expect(visit.waiting).to_have_text(["later"])
    press("Escape")
    expect(visit.page.get_by_text("held by your stop")).to_be_visible()
    # Back from the field, the controls of what waits are the nearest ones.
    for _ in range(4):
        press("Shift+Tab")
    expect(visit.page.get_by_role("button", name="Continue")).to_be_focused()
    press("Enter")
    expect(visit.answers.last).to_have_text("Next.")
    press("Control+k")
    expect(visit.page.get_by_label("Search sessions")).to_be_focused()
