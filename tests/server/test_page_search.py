"""Finding what was said, and signing out, in a real browser."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Locator, expect

from bargein.models.script import Answer, Say, Wait
from tests.server.page_house import House
from tests.server.page_visit import Visit, until

GATE = "Sign in"


def said(visit: Visit, house: House, text: str, answer: str) -> str:
    """A new session in which this was said and answered."""
    house.script([Say(answer)])
    visit.session = visit.new_session()
    visit.say(text)
    expect(visit.answers.last).to_have_text(answer)
    expect(visit.state).to_have_text("Ready")
    return visit.session


def search(visit: Visit, words: str) -> Locator:
    visit.page.get_by_label("Search sessions").fill(words)
    return visit.page.locator(".found-list a")


@pytest.fixture
def fresh(house: House, browser: Browser) -> Iterator[Visit]:
    """Somebody who looks for things."""
    visit = Visit.begin(house, browser)
    visit.enter(house.new_token("searcher"))
    yield visit
    visit.close()


def test_what_was_said_is_found_in_the_sessions_one_may_see(
    house: House, browser: Browser, fresh: Visit
) -> None:
    first = said(fresh, house, "Tell me of the heron", "It stands in the shallow water.")
    second = said(fresh, house, "And the bittern?", "It stands in the reeds, unseen.")
    stranger = Visit.begin(house, browser)
    stranger.enter(house.new_token("stranger"))
    said(stranger, house, "My own reeds stand here", "A secret of the stranger.")
    # Not looked for, nothing was found.
    expect(fresh.page.get_by_role("heading", name="What was said")).to_be_hidden()

    places = search(fresh, "stands")
    expect(places).to_have_count(2)
    expect(fresh.page.get_by_role("heading", name="What was said")).to_be_visible()
    expect(places.first).to_contain_text("It stands in the reeds")
    expect(places.first.locator("mark")).to_have_text(["stands"])
    expect(search(fresh, "SHALL wat")).to_have_text(["It stands in the shallow water."])
    expect(fresh.page.locator(".found-list mark")).to_have_text(["shall", "wat"])
    expect(search(fresh, "reeds")).to_have_count(1)
    expect(fresh.page.locator(".found-list")).not_to_contain_text("secret")
    expect(search(fresh, "shallow")).to_have_count(1)
    fresh.page.locator(".found-list a").click()
    fresh.page.wait_for_url(re.compile(re.escape(f"#/s/{first}?at=")))
    expect(fresh.answers).to_have_text(["It stands in the shallow water."])
    assert second != first

    search(fresh, "stranger")
    nothing = fresh.page.locator(".sessions .notice")
    expect(nothing).to_have_text("No session is named “stranger”, and no message contains it.")
    stranger.close()


def test_a_place_far_back_is_shown_with_what_was_said_there(house: House, fresh: Visit) -> None:
    turns = 190
    answers = [Answer([Say(f"Answer {number}, as asked.")]) for number in range(turns)]
    fresh.session = fresh.new_session()
    house.script(*answers)

    async def talk() -> None:
        session = await house.engine.session(fresh.session)
        for number in range(turns):
            await (await session.send(f"Message {number}")).result()

    house.run(talk)
    fresh.page.reload()
    expect(fresh.answers.last).to_have_text(f"Answer {turns - 1}, as asked.")
    expect(fresh.answers.get_by_text("Answer 3, as asked.")).to_have_count(0)
    # Also those that begin so, and are newer: the oldest stands last.
    for words, text in (("answer 3", "Answer 3, as asked."), ("message 150", "Message 150")):
        places = search(fresh, words)
        expect(places.first).to_contain_text(words.split()[1])
        if words == "answer 3":
            expect(places).to_have_count(3)
            fresh.page.get_by_role("button", name="and 8 more places").click()
            expect(places).to_have_count(11)
        link = places.get_by_text(text, exact=True)
        expect(link).to_have_count(1)
        link.click()
        there = fresh.items.locator("> li").get_by_text(text, exact=True)
        expect(there).to_be_in_viewport()
        expect(there.locator("xpath=ancestor::li")).to_be_focused()
    # It is not torn away by what comes at the end.
    house.script([Say("Newest.")])
    house.run(lambda: say(house, fresh.session, "More"))
    expect(fresh.answers.last).to_have_text("Newest.")
    expect(fresh.items.get_by_text("Message 150", exact=True)).to_be_in_viewport()


async def say(house: House, session: str, text: str) -> None:
    await (await (await house.engine.session(session)).send(text)).result()


def test_escape_empties_the_search_and_stops_nothing(house: House, fresh: Visit) -> None:
    said(fresh, house, "A quiet pond", "Frogs.")
    house.script([Say("Going on "), Wait("search"), Say("and on.")])
    fresh.say("Once more")
    house.wait_for_gate("search")
    expect(search(fresh, "pond")).to_have_count(1)
    field = fresh.page.get_by_label("Search sessions")
    field.press("Escape")
    expect(field).to_have_value("")
    expect(fresh.page.locator(".found-list")).to_be_hidden()
    house.open_gate("search")
    expect(fresh.answers.last).to_have_text("Going on and on.")


def test_signing_out_forgets_who_it_was_in_every_tab(house: House, fresh: Visit) -> None:
    session = said(fresh, house, "Something private", "Very private.")
    fresh.page.once("dialog", lambda dialog: dialog.accept())
    fresh.words.fill("a draft that was not sent")
    other = fresh.context.new_page()
    other.goto(f"{house.address}/#/s/{session}")
    expect(other.locator(".answer .prose")).to_have_text(["Very private."])
    until(lambda: house.streams("searcher") == 2, "both tabs read the session")

    fresh.page.get_by_role("button", name="Sign out").click()
    for page in (fresh.page, other):
        expect(page.get_by_role("heading", name=GATE)).to_be_visible()
        assert "private" not in page.content()
        assert page.url == f"{house.address}/"
        kept = page.evaluate("() => JSON.stringify([{...localStorage}, {...sessionStorage}])")
        assert "draft" not in kept
        assert "private" not in kept
    assert fresh.context.cookies() == []
    until(lambda: house.streams("searcher") == 0, "no stream of theirs is open")

    # Neither going back nor the address of the session shows anything.
    fresh.page.go_back()
    fresh.page.goto(f"{house.address}/#/s/{session}")
    expect(fresh.page.get_by_role("heading", name=GATE)).to_be_visible()
    assert "private" not in fresh.page.content()
    fresh.page.get_by_label("Token").fill(house.new_token("somebody else"))
    fresh.page.get_by_role("button", name="Enter").click()
    expect(fresh.page.locator(".sessions-foot")).to_contain_text("somebody else")
    expect(fresh.page.locator(".banner")).to_contain_text("not yours to see")
    assert "private" not in fresh.page.content()


def test_signing_out_needs_no_server(house: House, fresh: Visit) -> None:
    said(fresh, house, "Hello", "Hello to you.")
    fresh.page.route("**/v1/**", lambda route: route.abort())
    fresh.page.get_by_role("button", name="Sign out").click()
    expect(fresh.page.get_by_role("heading", name=GATE)).to_be_visible()
    assert "Hello" not in fresh.page.content()
    assert fresh.page.evaluate("() => sessionStorage.length") == 0
