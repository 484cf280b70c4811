"""Permissions on the page: an approval for longer, the permission mode, and grants taken back."""

from __future__ import annotations

from playwright.sync_api import Browser, Locator, Page, expect

from bargein.contracts.event import CallEnded, Granted, GrantRevoked, PermissionChanged
from bargein.models.script import Call, Say
from tests.server.page_house import House
from tests.server.page_visit import Visit, until

DANGER = "rm -rf nothing-here"
ONCE, SESSION, ALWAYS = "Allow once", "For this session", "Always in this project"


def command(text: str) -> Call:
    return Call("terminal", {"command": text})


def question_of(visit: Visit) -> Locator:
    return visit.page.locator(".question:not(.closed)")


def names_in(question: Locator) -> list[str]:
    expect(question.get_by_role("button", name=ONCE)).to_be_visible()
    return question.get_by_role("button").all_inner_texts()


def grants_of(page: Page) -> Locator:
    return page.locator(".grant")


def mode_of(page: Page) -> Locator:
    return page.get_by_role("combobox", name="Permission mode")


def test_an_approval_for_the_session_is_asked_about_once_until_it_is_revoked(
    house: House, visit: Visit
) -> None:
    again = [command(DANGER)]
    answer = [Say("It ran.")]
    house.script(again, answer, again, answer, again, answer)
    visit.say("Clean up")
    question = question_of(visit)
    assert names_in(question) == [ONCE, SESSION, ALWAYS, "Deny"]
    expect(question).to_contain_text(f"For this session or always: terminal: {DANGER}")
    # With the keys alone.
    question.get_by_role("button", name=ONCE).focus()
    visit.page.keyboard.press("Tab")
    visit.page.keyboard.press("Enter")
    expect(visit.answers).to_have_count(1)
    expect(visit.page.locator(".question")).to_contain_text("Allowed for this session · operator")
    expect(grants_of(visit.page)).to_contain_text(DANGER)
    expect(grants_of(visit.page)).to_contain_text("in this session · operator")
    visit.say("Again")
    expect(visit.answers).to_have_count(2)
    expect(visit.page.locator(".question")).to_have_count(1)
    grants_of(visit.page).get_by_role("button", name=f"Revoke terminal: {DANGER}").click()
    expect(grants_of(visit.page)).to_have_count(0)
    visit.say("Once more")
    question_of(visit).get_by_role("button", name="Deny").click()
    expect(visit.answers).to_have_count(3)
    events = [each.event for each in visit.log()]
    (granted,) = [each for each in events if isinstance(each, Granted)]
    (revoked,) = [each for each in events if isinstance(each, GrantRevoked)]
    assert (granted.by, revoked.by, revoked.grant) == ("operator", "operator", granted.grant.id)


def test_always_holds_in_other_sessions_until_it_is_revoked(house: House, visit: Visit) -> None:
    again = [command("rm -rf nothing-there")]
    house.script(again, [Say("It ran.")], again, [Say("It ran too.")])
    visit.say("Clean up")
    question_of(visit).get_by_role("button", name=ALWAYS).click()
    expect(visit.answers.last).to_have_text("It ran.")
    visit.session = visit.new_session()
    expect(grants_of(visit.page)).to_contain_text("always in this project")
    visit.say("Clean up")
    expect(visit.answers.last).to_have_text("It ran too.")
    expect(visit.page.locator(".question")).to_have_count(0)
    grants_of(visit.page).get_by_role("button", name="Revoke").click()
    expect(grants_of(visit.page)).to_have_count(0)


def test_the_mode_is_shown_changed_and_followed(
    house: House, visit: Visit, browser: Browser
) -> None:
    house.script([command("touch made")], [Say("I cannot.")])
    expect(mode_of(visit.page)).to_have_value("ask")
    mode_of(visit.page).select_option("plan")
    expect(mode_of(visit.page)).to_have_value("plan")
    visit.say("Make a file")
    expect(visit.answers.last).to_have_text("I cannot.")
    (ended,) = [each.event for each in visit.log() if isinstance(each.event, CallEnded)]
    assert "plan mode" in str(ended.result.content)
    expect(visit.calls).to_contain_text(
        "refused: plan mode is read only; change the permission mode to let it run"
    )
    assert not (house.workspace / "made").exists()
    # Somebody else changes it.
    visit.ask("PATCH", f"/v1/sessions/{visit.session}", {"mode": "auto-edit"})
    expect(mode_of(visit.page)).to_have_value("auto-edit")
    # Nothing is asked in full mode: that is asked first.
    visit.page.once("dialog", lambda dialog: dialog.dismiss())
    mode_of(visit.page).select_option("full")
    expect(mode_of(visit.page)).to_have_value("auto-edit")
    visit.page.once("dialog", lambda dialog: dialog.accept())
    mode_of(visit.page).select_option("full")
    expect(mode_of(visit.page)).to_have_value("full")
    visit.page.reload()
    expect(mode_of(visit.page)).to_have_value("full")
    changed = [e.event for e in visit.log() if isinstance(e.event, PermissionChanged)]
    assert [each.mode for each in changed] == ["plan", "auto-edit", "full"]


def test_each_is_offered_what_it_may_do(house: House, visit: Visit, browser: Browser) -> None:
    """One with whom the session is shared grants for the session; one who reads, nothing."""
    house.script([command(DANGER)], [Say("It ran.")])
    members = {"ann": "write", "rob": "read"}
    visit.ask("PATCH", f"/v1/sessions/{visit.session}", {"members": members})
    visit.say("Clean up")
    names_in(question_of(visit))
    others = {}
    for name in members:
        other = Visit.begin(house, browser)
        other.enter(house.new_token(name))
        other.page.goto(f"{other.address}/#/s/{visit.session}")
        others[name] = other
    ann, rob = others["ann"], others["rob"]
    expect(rob.page.locator(".question")).to_contain_text(DANGER)
    expect(mode_of(rob.page)).to_be_disabled()
    expect(rob.page.locator(".question").get_by_role("button")).to_have_count(0)
    assert names_in(question_of(ann)) == [ONCE, SESSION, "Deny"]
    expect(question_of(ann)).to_contain_text(f"For this session: terminal: {DANGER}")
    expect(mode_of(ann.page)).to_be_enabled()
    question_of(ann).get_by_role("button", name=SESSION).click()
    expect(visit.answers.last).to_have_text("It ran.")
    for each in (visit, ann, rob):
        expect(grants_of(each.page)).to_contain_text("in this session · ann")
    expect(grants_of(rob.page).get_by_role("button")).to_have_count(0)
    grants_of(ann.page).get_by_role("button", name="Revoke").click()
    expect(grants_of(visit.page)).to_have_count(0)
    ann.close()
    rob.close()


def test_all_of_it_is_there_on_a_phone(house: House, browser: Browser) -> None:
    house.script([command(DANGER)], [Say("It ran.")])
    phone = Visit.begin(house, browser, width=375, height=700)
    phone.enter_narrow()
    expect(mode_of(phone.page)).to_have_value("ask")
    phone.say("Clean up")
    assert names_in(question_of(phone)) == [ONCE, SESSION, ALWAYS, "Deny"]
    for each in question_of(phone).get_by_role("button").all():
        box = each.bounding_box()
        assert box is not None
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 375
    question_of(phone).get_by_role("button", name=SESSION).click()
    expect(phone.answers.last).to_have_text("It ran.")
    phone.page.get_by_role("button", name="What is going on").click()
    grants_of(phone.page).get_by_role("button", name="Revoke").click()
    expect(grants_of(phone.page)).to_have_count(0)
    until(lambda: not house.run(lambda: _grants(house, phone.session)), "the grant is gone")
    phone.close()


async def _grants(house: House, session: str) -> object:
    return await (await house.engine.session(session)).grants()
