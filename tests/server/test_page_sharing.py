from __future__ import annotations

from playwright.sync_api import Browser, expect

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
