from __future__ import annotations

import re

from playwright.sync_api import Browser, expect

from bargein.models.script import Call, Say, Wait
from tests.server.page_house import House
from tests.server.page_visit import Visit


def test_an_invitation_is_accepted_or_hidden(house: House, visit: Visit, browser: Browser) -> None:
    shared = {"Plans": visit.session, "Spam": visit.new_session()}
    for title, session in shared.items():
        change = {"title": title, "members": {"ann": "write"}}
        visit.ask("PATCH", f"/v1/sessions/{session}", change)
    ann = Visit.begin(house, browser)
    ann.enter(house.new_token("ann"))
    invited = ann.page.get_by_role("region", name="Shared with you")
    listed = ann.page.locator(".session-row")
    expect(invited.locator(".invitation")).to_have_count(2)
    expect(invited.locator(".invitation", has_text="Plans")).to_contain_text("from operator")
    expect(listed).to_have_count(0)
    invited.get_by_role("button", name="Hide Spam from operator").click()
    expect(invited.locator(".invitation")).to_have_count(1)
    invited.get_by_role("button", name="Accept Plans from operator").click()
    expect(invited).to_be_hidden()
    expect(listed).to_have_count(1)
    expect(listed).to_contain_text("Plans")
    expect(ann.page.get_by_role("heading", name="Plans")).to_be_visible()
    ann.page.reload()
    expect(listed).to_have_count(1)
    expect(invited).to_be_hidden()
    ann.close()


def test_a_guest_is_not_offered_to_roll_back(house: House, visit: Visit, browser: Browser) -> None:
    visit.ask("PATCH", f"/v1/sessions/{visit.session}", {"members": {"ann": "talk"}})
    ann = Visit.begin(house, browser)
    ann.enter(house.new_token("ann"))
    ann.page.get_by_role("button", name=re.compile("Accept .* from operator")).click()
    house.script([Say("On and on"), Wait("end")])
    visit.say("Talk")
    expect(visit.page.get_by_role("radio")).to_have_text(
        ["Steer", "Redirect", "Queue", "Roll back"]
    )
    modes = ann.page.get_by_role("radio")
    expect(modes).to_have_text(["Steer", "Redirect", "Queue"])
    ann.words.fill("hello")
    for chosen in ("Redirect", "Queue", "Steer"):
        ann.words.press("Tab")
        expect(modes.and_(ann.page.locator("[aria-checked=true]"))).to_have_text([chosen])
    modes.last.focus()
    ann.page.keyboard.press("ArrowRight")
    expect(modes.first).to_have_attribute("aria-checked", "true")
    ann.close()


def test_a_guest_reads_how_to_be_allowed_to_approve(
    house: House, visit: Visit, browser: Browser
) -> None:
    visit.ask("PATCH", f"/v1/sessions/{visit.session}", {"members": {"ann": "talk"}})
    ann = Visit.begin(house, browser)
    ann.enter(house.new_token("ann"))
    ann.page.get_by_role("button", name=re.compile("Accept .* from operator")).click()
    house.script([Call("terminal", {"command": "rm -rf nothing-here"})], [Say("Well.")])
    visit.say("Clean up")
    question = ann.page.locator(".question:not(.closed)")
    expect(question).to_contain_text("/share approve")
    expect(question.get_by_role("button")).to_have_count(0)
    visit.page.get_by_role("button", name="Deny").click()
    expect(ann.answers).to_have_text(["Well."])
    ann.close()


PUT_OUT = """() => {
  sessionStorage.setItem("bargein.token", "bgn_000000000000_gone");
  sessionStorage.setItem("bargein.principal", "guest");
  sessionStorage.setItem("bargein.guest", "yes");
  const entry = { kind: "outgoing", key: "o-1", clientId: "1", session: "s", pictures: [] };
  const unsent = { ...entry, text: "my last words", mode: "steer", state: "later" };
  sessionStorage.setItem("bargein.outbox", JSON.stringify([unsent]));
}"""


def test_a_guest_who_was_put_out_reads_why_and_what_was_not_sent(
    house: House, browser: Browser
) -> None:
    guest = Visit.begin(house, browser)
    guest.page.goto(guest.address)
    expect(guest.page.get_by_label("Token")).to_be_visible()
    guest.page.evaluate(PUT_OUT)
    guest.page.reload()
    problem = guest.page.get_by_role("alert")
    expect(problem).to_contain_text("This chat is not shared with you any more.")
    expect(problem).to_contain_text("Not sent: my last words")
    guest.close()
