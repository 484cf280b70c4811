"""What is typed is never lost: before there is a session, while another is opened, when a server
dies. And text on the screen does not disappear without a note."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from bargein.contracts.event import MessageAccepted
from bargein.models.script import Answer, Say, Wait
from tests.server.page_house import House
from tests.server.page_relay import Relay
from tests.server.page_visit import Visit
from tests.server.program import Program

CRASHING = """
repeat = true
[[answers]]
when = "before"
steps = [{ do = "say", text = "Never written down." }, { do = "pause", seconds = 600.0 }]
[[answers]]
steps = [
    { do = "say", text = "Once a second " }, { do = "pause", seconds = 1.1 },
    { do = "say", text = "it is kept. " }, { do = "pause", seconds = 0.1 },
    { do = "say", text = "This is not." }, { do = "pause", seconds = 600.0 },
]
"""

CALL_ENDED = """async () => {
    const { emptySession, reduce } = await import("/static/js/state/session.js");
    const call = { id: "c1", name: "terminal", arguments: "{}" };
    const text = "outcome unknown: the program ended while it ran";
    const result = { status: "unknown", content: [{ type: "text", text }] };
    const recorded = [
        { type: "turn_started", turn: "t1", messages: [] },
        { type: "call_started", turn: "t1", call, effect: "external", title: "make" },
    ].map((event, place) => ({ seq: place + 1, at: 1, event }));
    const entries = [
        ...recorded,
        { type: "call_output", turn: "t1", call_id: "c1", text: "half of it" },
        { seq: 3, at: 2, event: { type: "call_ended", turn: "t1", call_id: "c1", result } },
    ];
    const session = entries.reduce((known, each) => reduce(known, each, 0), emptySession("s"));
    const { callView } = await import("/static/js/views/call.js");
    const view = callView(null, { get: () => ({ clockOffset: 0, session }) }, {});
    view.update(session.calls.c1);
    view.node.querySelector(".call-open").click();
    return view.node.querySelector("pre").textContent;
}"""


@pytest.fixture
def home(house: House, browser: Browser) -> Iterator[Visit]:
    """Somebody who has just signed in, and has opened nothing yet."""
    visit = Visit.begin(house, browser)
    visit.enter()
    yield visit
    visit.close()


def said_in(visit: Visit) -> list[str]:
    events = [each.event for each in visit.log()]
    return [event.message.text for event in events if isinstance(event, MessageAccepted)]


def current_session(visit: Visit) -> str:
    visit.page.wait_for_url("**/#/s/*")
    return visit.page.url.partition("#/s/")[2]


def sessions_count(visit: Visit) -> int:
    return len(visit.ask("GET", "/v1/sessions?limit=200")["sessions"])


def test_a_session_begins_with_what_is_said_at_home(house: House, home: Visit) -> None:
    house.script([Say("Hello to you.")])
    expect(home.words).to_be_focused()
    home.page.keyboard.type("Hello")
    home.page.keyboard.press("Enter")
    expect(home.answers).to_have_text(["Hello to you."])
    expect(home.state).to_have_text("Ready")
    home.session = current_session(home)
    assert said_in(home) == ["Hello"]
    expect(home.words).to_be_focused()


def test_what_is_typed_right_after_new_is_in_the_new_session(house: House, home: Visit) -> None:
    home.session = home.new_session()
    home.words.fill("a draft of the old one")
    house.script([Say("A fresh start.")])
    home.page.get_by_role("button", name="New session").click()
    # No waiting: the field has the focus by then.
    home.page.keyboard.type("Something new")
    expect(home.words).to_have_value("Something new")
    home.page.keyboard.press("Enter")
    expect(home.answers).to_have_text(["A fresh start."])
    old, home.session = home.session, current_session(home)
    assert home.session != old
    assert said_in(home) == ["Something new"]
    home.page.goto(f"{house.address}/#/s/{old}")
    expect(home.words).to_have_value("a draft of the old one")
    home.words.fill("")


def test_all_that_is_said_before_the_session_is_there_is_said_in_it_once(
    house: House, browser: Browser
) -> None:
    with Relay(house.port) as relay:
        visit = Visit.begin(house, browser, through=relay.address)
        visit.enter()
        before = sessions_count(visit)
        # The second message may come before the first request or steer into it; either is right.
        both = Answer([Say("Both heard."), Wait("never")], when=r"first\s+second|second\s+first")
        house.script(both, [Wait("never")])
        relay.go_away()
        visit.say("first")
        visit.say("second")
        visit.words.fill("and a draft")
        unsent = visit.page.locator(".message.sending")
        expect(unsent.filter(has_text="it goes out when")).to_have_count(2)
        relay.come_back()
        visit.page.wait_for_url(lambda url: "/s/" in url and "new" not in url)
        visit.session = current_session(visit)
        expect(visit.answers.first).to_contain_text("Both heard.")
        expect(unsent).to_have_count(0)
        assert sorted(said_in(visit)) == ["first", "second"]
        assert sessions_count(visit) == before + 1
        expect(visit.words).to_have_value("and a draft")
        visit.words.fill("")
        visit.words.press("Escape")
        visit.close()


def test_a_draft_at_home_stays_over_a_reload(home: Visit) -> None:
    home.words.fill("not yet said")
    home.page.reload()
    expect(home.words).to_have_value("not yet said")
    home.session = home.new_session()
    expect(home.words).to_have_value("")
    home.page.keyboard.press("Alt+n")
    expect(home.words).to_have_value("not yet said")
    # Nobody loses it by a slip.
    home.page.once("dialog", lambda dialog: dialog.dismiss())
    home.page.get_by_role("button", name="Sign out").click()
    expect(home.words).to_have_value("not yet said")


def test_a_message_that_was_taken_back_is_a_draft(house: House, home: Visit) -> None:
    home.session = home.new_session()
    house.script([Say("Busy"), Wait("taken back, left")])
    home.say("Go")
    expect(home.answers.last).to_have_text("Busy")
    home.queue("Not yet right")
    home.words.press("Alt+ArrowUp")
    expect(home.words).to_have_value("Not yet right")
    home.page.reload()
    expect(home.words).to_have_value("Not yet right")
    home.words.press("Escape")
    expect(home.cut).to_contain_text("stopped in")


def test_what_was_on_the_screen_when_the_server_died_stays_marked(
    browser: Browser, tmp_path: Path
) -> None:
    context = browser.new_context()
    some, none = context.new_page(), context.new_page()
    with Program(tmp_path, CRASHING) as program:
        some.goto(address_of(program))
        expect(some.locator("#words")).to_be_visible()
        none.goto(program.url)
        for page, words, shown in ((none, "before", "written down."), (some, "Talk", "is not.")):
            page.bring_to_front()
            page.locator("#words").fill(words)
            page.locator("#words").press("Enter")
            expect(page.locator(".answer")).to_contain_text(shown)
        some.locator("#words").fill("a draft")
        program.process.kill()
        program.process.wait()
    with Program(tmp_path, CRASHING, "--port", program.url.rpartition(":")[2]) as program:
        # A new start has a new token, and the door asks for it. One tab is enough.
        for page in (some, none):
            page.bring_to_front()
            expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
        some.goto(address_of(program))
        for page, kept, unkept, told in (
            (some, "Once a second it is kept. ", "This is not.", "stored up to here"),
            (none, "", "Never written down.", "shown, but not stored"),
        ):
            page.bring_to_front()
            expect(page.locator(".cut summary")).to_contain_text("the program ended")
            expect(page.locator(".answer > .prose")).to_have_text(kept)
            expect(page.locator(".answer .unkept")).to_have_text(unkept)
            expect(page.locator(".answer .about")).to_contain_text(told)
        expect(some.locator("#words")).to_have_value("a draft")
    context.close()


def address_of(program: Program) -> str:
    """Returns the address as the server prints it."""
    token = program.headers["authorization"].removeprefix("Bearer ")
    return f"{program.url}/#token={token}"


def test_output_of_a_call_that_a_crash_ended_stays_marked(home: Visit) -> None:
    shown = home.page.evaluate(CALL_ENDED)
    assert shown.startswith("half of it\n[the output above was shown, but not stored]\n")
    assert "outcome unknown" in shown


NO_LISTING = """() => {
    const really = window.setInterval;
    window.setInterval = (act, ms) => (ms >= 4000 ? 0 : really(act, ms));
}"""


def test_a_session_that_was_begun_elsewhere_is_in_the_list_when_it_is_opened(
    house: House, browser: Browser
) -> None:
    visit = Visit.begin(house, browser)
    # Otherwise the list is read every few seconds anyway.
    visit.page.add_init_script(f"({NO_LISTING})()")
    visit.enter()
    made = visit.ask("POST", "/v1/sessions", {})["session"]["id"]
    visit.ask("PATCH", f"/v1/sessions/{made}", {"title": "Begun elsewhere"})
    visit.page.evaluate("(id) => { location.hash = `#/s/${id}`; }", made)
    expect(visit.page.locator(".session-row.current")).to_contain_text("Begun elsewhere")
    visit.close()
