"""Signing in: the page sends its token in a header, to this server alone, and other tabs of the
page get it without typing."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from playwright.sync_api import Browser, Dialog, expect

from bargein.models.script import Say
from tests.server.page_house import START_TOKEN, House
from tests.server.page_relay import Relay
from tests.server.page_visit import Visit

GATE = "Sign in"
# A page of the same origin that asks the tabs of the origin for their token.
ASK = """() => new Promise((resolve) => {
    const tabs = new BroadcastChannel("bargein.door");
    const heard = [];
    tabs.addEventListener("message", ({ data }) => data.gives && heard.push(data.gives));
    tabs.postMessage({ asks: true });
    setTimeout(() => resolve(heard), 300);
})"""


@pytest.fixture
def guest(house: House, browser: Browser) -> Iterator[Visit]:
    visit = Visit.begin(house, browser)
    yield visit
    visit.close()


@contextmanager
def dev_server() -> Iterator[tuple[str, list[str]]]:
    """Another server of this machine, such as an agent may start: its address, and the heads of all
    requests to it."""
    heads: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            heads.append(f"{self.path}\n{self.headers}")
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/", heads
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_no_other_port_of_the_machine_is_sent_the_token(house: House, guest: Visit) -> None:
    guest.enter()
    house.script([Say("Hello.")])
    guest.say("Hello")
    expect(guest.answers).to_have_text(["Hello."])
    assert guest.context.cookies() == []
    with dev_server() as (address, heads):
        other = guest.context.new_page()
        other.goto(address)
        guest.page.goto(address)
    assert heads
    assert not [head for head in heads if START_TOKEN in head or "cookie" in head.lower()]


def test_the_token_is_in_one_header_and_in_no_address(house: House, browser: Browser) -> None:
    with Relay(house.port) as relay:
        visit = Visit.begin(house, browser, through=relay.address)
        visit.enter()
        visit.session = visit.new_session()
        house.script([Say("Hello.")])
        visit.say("Hello")
        expect(visit.answers).to_have_text(["Hello."])
        assert START_TOKEN not in visit.page.url
        assert not [url for url in visit.requests if START_TOKEN in url.partition("#")[0]]
        visit.page.go_back()
        assert START_TOKEN not in visit.page.url
        visit.close()
    lines = relay.sent.split(b"\r\n")
    told = {line.partition(b":")[0].lower() for line in lines if START_TOKEN.encode() in line}
    assert told == {b"authorization"}
    (offered,) = {line for line in lines if line.lower().startswith(b"sec-websocket-protocol")}
    assert offered.startswith(b"Sec-WebSocket-Protocol: bargein.v1, bargein.ticket.")


def test_a_tab_that_is_opened_by_hand_needs_no_token(house: House, guest: Visit) -> None:
    guest.enter()
    other = guest.context.new_page()
    other.goto(house.address)
    expect(other.get_by_role("button", name="New session")).to_be_visible()
    other.reload()
    expect(other.get_by_role("button", name="New session")).to_be_visible()
    other.get_by_role("button", name="Sign out").click()
    for page in (guest.page, other):
        expect(page.get_by_role("heading", name=GATE)).to_be_visible()
        assert page.evaluate("() => sessionStorage.length") == 0
    late = guest.context.new_page()
    late.goto(house.address)
    expect(late.get_by_role("heading", name=GATE)).to_be_visible()
    # Those who wait at the door come in with the first who is let in.
    guest.page.get_by_label("Token").fill(START_TOKEN)
    guest.page.get_by_role("button", name="Enter").click()
    expect(late.get_by_role("button", name="New session")).to_be_visible()


def test_a_tab_that_has_lost_the_server_hands_its_token_to_nobody(
    house: House, browser: Browser
) -> None:
    """The port may be another program's by now, whose pages are of the same origin."""
    with Relay(house.port) as relay:
        visit = Visit.begin(house, browser, through=relay.address)
        visit.enter()
        visit.session = visit.new_session()
        other = visit.context.new_page()
        other.goto(f"{relay.address}/healthz")
        assert other.evaluate(ASK) == [START_TOKEN]
        relay.go_away()
        expect(visit.state).to_have_text("Not connected")
        assert other.evaluate(ASK) == []
        visit.close()


def test_an_address_with_anothers_token_does_not_change_who_one_is(
    house: House, guest: Visit
) -> None:
    """A page elsewhere leads here with a token of its own, to read what is said next."""
    mallory = house.new_token("mallory")
    guest.enter()
    guest.words.fill("a private draft")
    asked: list[str] = []

    def refuse(dialog: Dialog) -> None:
        asked.append(dialog.message)
        dialog.dismiss()

    guest.page.once("dialog", refuse)
    with guest.page.expect_event("dialog"):
        guest.page.goto(f"{house.address}/#token={mallory}")
    expect(guest.page.locator(".sessions-foot")).to_contain_text("operator")
    assert guest.page.url == f"{house.address}/"
    assert asked == ["This address signs you in as “mallory”. Is that you?"]
    expect(guest.words).to_have_value("a private draft")
    # Whoever wants it begins with an empty page.
    guest.page.once("dialog", lambda dialog: dialog.accept())
    guest.page.goto(f"{house.address}/#token={mallory}")
    expect(guest.page.locator(".sessions-foot")).to_contain_text("mallory")
    expect(guest.words).to_have_value("")


def test_a_token_behind_the_question_mark_is_not_taken(house: House, guest: Visit) -> None:
    guest.page.goto(f"{house.address}/?token={START_TOKEN}")
    expect(guest.page.locator(".gate .problem")).to_contain_text("it was not used")
    assert guest.page.url == f"{house.address}/"
    guest.page.goto(f"{house.address}/#token={START_TOKEN}")
    expect(guest.page.get_by_role("button", name="New session")).to_be_visible()
