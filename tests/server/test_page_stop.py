"""A stop from the page always has a way out: from any of many tabs, with a slow server, without
one. It is shown as pending at once, and what is pending ends truthfully."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from bargein.contracts.event import MessageAccepted, TurnSettled
from bargein.models.script import Call, Say, Wait
from tests.server.page_house import House
from tests.server.page_relay import Relay
from tests.server.page_visit import Visit, until

TABS = 8
# On an idle machine a stop from the page takes well under 0.1 s.
STOPPED_WITHIN_S = 5.0
# What the page shows in the frames right after the key.
ESCAPE = """() => new Promise((resolve) => {
    const event = new KeyboardEvent("keydown", { key: "Escape", bubbles: true });
    document.getElementById("words").dispatchEvent(event);
    const shown = () => resolve(document.querySelector(".bar .state").textContent);
    requestAnimationFrame(() => requestAnimationFrame(shown));
})"""


@pytest.fixture
def relay(house: House) -> Iterator[Relay]:
    with Relay(house.port) as relay:
        yield relay


@pytest.fixture
def visitor(house: House, browser: Browser, relay: Relay) -> Iterator[Visit]:
    """Somebody who watches a turn through the relay."""
    visit = Visit.begin(house, browser, through=relay.address)
    visit.enter()
    visit.session = visit.new_session()
    yield visit
    relay.come_back()
    relay.release()
    visit.close()


def start(visit: Visit, gate: str) -> None:
    visit.house.script([Say("On and on"), Wait(gate), Say(" to the end.")])
    visit.say("Talk")
    expect(visit.answers).to_have_text(["On and on"])


def outcomes(visit: Visit) -> list[str]:
    events = [each.event for each in visit.log()]
    return [event.outcome for event in events if isinstance(event, TurnSettled)]


def test_a_stop_gets_out_of_any_of_eight_tabs(house: House, browser: Browser) -> None:
    """A browser opens six HTTP/1.1 connections to a host, in all its tabs together."""
    visit = Visit.begin(house, browser)
    visit.enter()
    visit.session = visit.new_session()
    pages = [visit.page]
    while len(pages) < TABS:
        page = visit.context.new_page()
        page.goto(f"{house.address}/#/s/{visit.session}")
        pages.append(page)
    for turn, page in enumerate((pages[0], pages[-1])):
        house.script([Say("On and on"), Wait("never")])
        page.bring_to_front()
        page.locator("#words").fill("Talk")
        page.locator("#words").press("Enter")
        expect(page.locator(".answer .prose").nth(turn)).to_have_text("On and on")
        began = time.monotonic()
        page.keyboard.press("Escape")
        expect(page.locator(".cut summary").nth(turn)).to_contain_text("stopped in")
        assert time.monotonic() - began < STOPPED_WITHIN_S
    for page in pages:
        expect(page.locator(".cut summary")).to_have_count(2)
    visit.close()


def test_a_stop_is_shown_at_once_however_slow_the_server_is(relay: Relay, visitor: Visit) -> None:
    start(visitor, "slow")
    relay.hold()
    assert visitor.page.evaluate(ESCAPE) == "Stopping"
    button = visitor.page.locator(".composer .stop")
    expect(button).to_have_text("Stopping …")
    expect(button).to_be_disabled()
    told = visitor.page.get_by_role("alert", name="Stops on their way")
    expect(told).to_contain_text("has not answered your stop yet")
    expect(visitor.state).to_have_text("Stopping: no answer yet")
    assert outcomes(visitor) == []
    relay.release()
    expect(visitor.cut).to_contain_text("stopped in")
    expect(told).to_be_hidden()
    expect(visitor.state).to_have_text("Ready")
    assert outcomes(visitor) == ["stopped"]


def test_a_stop_that_cannot_be_delivered_says_so_and_goes_out_later(
    relay: Relay, visitor: Visit
) -> None:
    start(visitor, "unreachable")
    relay.go_away()
    expect(visitor.state).to_have_text("Not connected")
    visitor.words.press("Escape")
    told = visitor.page.get_by_role("alert", name="Stops on their way")
    expect(told).to_contain_text("has not been delivered, and the turn may go on")
    assert outcomes(visitor) == []
    assert "t1" in visitor.page.evaluate("() => sessionStorage.getItem('bargein.stops')")
    relay.come_back()
    told.get_by_role("button", name="Try the stop now").click()
    expect(visitor.cut).to_contain_text("stopped in")
    expect(told).to_be_hidden()
    assert outcomes(visitor) == ["stopped"]


def test_a_stop_that_was_on_its_way_goes_out_after_a_reload(relay: Relay, visitor: Visit) -> None:
    start(visitor, "reloaded")
    relay.hold()
    visitor.words.press("Escape")
    expect(visitor.state).to_contain_text("Stopping")
    relay.go_away()
    relay.release()
    relay.come_back()
    visitor.page.reload()
    expect(visitor.cut).to_contain_text("stopped in")
    expect(visitor.page.locator(".stops")).to_be_hidden()
    assert outcomes(visitor) == ["stopped"]


def test_a_stop_that_comes_too_late_touches_no_other_turn(relay: Relay, visitor: Visit) -> None:
    house = visitor.house
    start(visitor, "too late")
    relay.go_away()
    visitor.words.press("Escape")
    expect(visitor.page.locator(".stops")).to_be_visible()
    house.open_gate("too late")
    until(lambda: outcomes(visitor) == ["completed"], "the turn is over")
    house.script([Say("The next one"), Wait("next")])
    visitor.ask("POST", f"/v1/sessions/{visitor.session}/messages", {"text": "Again"})
    house.wait_for_gate("next")
    relay.come_back()
    expect(visitor.page.locator(".toast").first).to_contain_text("before your stop reached")
    expect(visitor.page.locator(".stops")).to_be_hidden()
    expect(visitor.answers.last).to_have_text("The next one")
    expect(visitor.state).to_contain_text("Working")
    assert outcomes(visitor) == ["completed"]
    visitor.words.press("Escape")
    expect(visitor.cut).to_contain_text("stopped in")


def test_a_stop_can_be_given_up(relay: Relay, visitor: Visit) -> None:
    start(visitor, "given up")
    relay.go_away()
    visitor.words.press("Escape")
    visitor.page.get_by_role("button", name="Give up the stop").click()
    expect(visitor.page.locator(".stops")).to_be_hidden()
    relay.come_back()
    expect(visitor.state).to_contain_text("Working")
    visitor.house.open_gate("given up")
    expect(visitor.answers).to_have_text(["On and on to the end."])
    assert outcomes(visitor) == ["completed"]


def test_a_stop_that_is_refused_says_so(house: House, browser: Browser, relay: Relay) -> None:
    """Who may not see the session any more may not stop its turn, and the turn goes on. (When a
    session is deleted its turn ends too, and then there is nothing left to refuse.)"""
    owner = Visit.begin(house, browser)
    session = owner.session = owner.ask("POST", "/v1/sessions", {})["session"]["id"]
    owner.ask("PATCH", f"/v1/sessions/{session}", {"members": {"ann": "write"}})
    ann = Visit.begin(house, browser, through=relay.address)
    ann.enter(house.new_token("ann"))
    ann.page.locator(".invitation").get_by_role("button", name="Accept").click()
    expect(ann.state).to_have_text("Ready")
    start(ann, "refused")
    relay.hold()
    ann.words.press("Escape")
    expect(ann.state).to_contain_text("Stopping")
    owner.ask("PATCH", f"/v1/sessions/{session}", {"members": {}})
    relay.release()
    expect(ann.page.locator(".toast").first).to_contain_text("Not stopped.")
    expect(ann.page.locator(".stops")).to_be_hidden()
    assert outcomes(owner) == []
    house.open_gate("refused")
    until(lambda: outcomes(owner) == ["completed"], "the turn is over")
    ann.close()
    owner.close()


def test_the_stop_of_a_call_is_shown_until_it_is_over(relay: Relay, visitor: Visit) -> None:
    visitor.house.script([Call("terminal", {"command": "sleep 651.5"})], [Say("Over.")])
    visitor.say("Run it")
    stop = visitor.calls.first.get_by_role("button", name="Stop sleep 651.5")
    expect(stop).to_be_visible()
    relay.go_away()
    stop.click()
    expect(stop).to_have_text("Stopping")
    expect(visitor.page.locator(".stops")).to_contain_text("has not been delivered")
    visitor.page.get_by_role("button", name="Give up the stop").click()
    expect(stop).to_have_text("Stop")
    relay.come_back()
    expect(visitor.page.locator(".banner")).to_be_hidden()
    stop.click()
    expect(visitor.answers.last).to_have_text("Over.")


def test_a_message_that_was_stopped_before_it_went_out_stays_here(
    relay: Relay, visitor: Visit
) -> None:
    visitor.house.script([Say("Heard.")])
    relay.go_away()
    visitor.say("On second thoughts")
    visitor.words.press("Escape")
    unsent = visitor.page.locator(".message.sending")
    expect(unsent).to_contain_text("you stopped before it went out")
    relay.come_back()
    expect(visitor.page.locator(".banner")).to_be_hidden()
    expect(visitor.state).to_have_text("Ready")
    accepted = [each for each in visitor.log() if isinstance(each.event, MessageAccepted)]
    assert accepted == []
    unsent.get_by_role("button", name="Send again").click()
    expect(visitor.answers).to_have_text(["Heard."])


def test_where_no_websocket_gets_through_the_page_says_so_and_still_stops(
    house: House, browser: Browser, relay: Relay
) -> None:
    relay.hears_upgrades = False
    visit = Visit.begin(house, browser, through=relay.address)
    visit.enter()
    visit.session = visit.new_session()
    banner = visit.page.locator(".banner")
    expect(banner).to_contain_text("WebSockets do not get through")
    start(visit, "no socket")
    visit.words.press("Escape")
    expect(visit.cut).to_contain_text("stopped in")
    relay.hears_upgrades = True
    banner.get_by_role("button", name="Try now").click()
    expect(banner).to_be_hidden()
    visit.close()


def test_a_socket_that_has_gone_silent_is_left_and_opened_anew(
    house: House, browser: Browser, relay: Relay
) -> None:
    """As after the machine has slept: no connection is closed, and nothing arrives."""
    visit = Visit.begin(house, browser, through=relay.address)
    visit.page.clock.install()
    visit.enter()
    visit.session = visit.new_session()
    start(visit, "silent")
    relay.hold()
    for _ in range(5):
        visit.page.clock.fast_forward(6_000)
    expect(visit.page.locator(".banner")).to_contain_text("The server has stopped answering")
    house.open_gate("silent")
    relay.release()
    visit.page.clock.fast_forward(6_000)
    expect(visit.page.locator(".banner")).to_be_hidden()
    expect(visit.answers).to_have_text(["On and on to the end."])
    visit.close()


def test_a_server_that_does_not_answer_is_not_asked_again_and_again(
    house: House, browser: Browser, relay: Relay
) -> None:
    """Each request that hangs holds one of the six connections that a browser has for a host."""
    visit = Visit.begin(house, browser, through=relay.address)
    visit.page.clock.install()
    visit.enter()
    relay.hold()
    visit.requests.clear()
    for _ in range(8):
        visit.page.clock.fast_forward(4_000)
    visit.page.wait_for_timeout(100)
    # What the page asked on entering may come late; each is asked once.
    asked = Counter(url for url in visit.requests if "/v1/" in url)
    assert set(asked.values()) == {1}, asked
    relay.release()
    visit.close()


def test_a_stop_before_the_page_knows_what_runs_is_honoured(relay: Relay, visitor: Visit) -> None:
    """Right after a reload, while the session is still being read."""
    start(visitor, "reloading")
    visitor.page.route("**/ticket", lambda route: route.abort())
    visitor.page.route(f"**/v1/sessions/{visitor.session}", lambda route: route.abort())
    visitor.page.reload()
    expect(visitor.words).to_be_focused()
    visitor.words.press("Escape")
    expect(visitor.page.locator(".bar .state")).to_contain_text("connected")
    visitor.page.unroute_all()
    expect(visitor.cut).to_contain_text("stopped in")
    assert outcomes(visitor) == ["stopped"]
