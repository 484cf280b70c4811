"""The server as the page shows it: what runs, tokens, the audit log, MCP servers; and with whom a
session is shared."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Locator, expect

from bargein.mcp import McpServer
from bargein.models.script import Call, Say, Wait
from tests.mcp.harness import SERVERS
from tests.server.page_house import House
from tests.server.page_visit import Visit, until


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    server = McpServer("sums", sys.executable, [str(SERVERS / "sdk.py")])
    missing = McpServer("gone", "/nowhere/mcp-server")
    home, work = tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("work")
    with House(home, work, mcp=[server, missing]) as house:
        yield house


def opened(visit: Visit, tab: str) -> Locator:
    dialog = visit.page.get_by_role("dialog", name="Server")
    if not dialog.is_visible():
        visit.page.get_by_role("button", name="Server").click()
    dialog.get_by_role("tab", name=tab).click()
    return dialog


def closed(visit: Visit) -> None:
    visit.page.keyboard.press("Escape")
    expect(visit.page.get_by_role("dialog", name="Server")).to_be_hidden()


def test_mcp_servers_are_shown_as_in_the_terminal(house: House, visit: Visit) -> None:
    house.script([Say("Hello.")])
    visit.say("Begin")
    expect(visit.answers.last).to_have_text("Hello.")
    dialog = opened(visit, "MCP servers")
    sums = dialog.locator(".mcp").filter(has_text="sums")
    expect(sums).to_contain_text("ready")
    sums.get_by_text("tools").click()
    expect(sums.get_by_text("mcp__sums__add", exact=True)).to_be_visible()
    gone = dialog.locator(".mcp").filter(has_text="gone")
    expect(gone.locator(".problem")).to_contain_text("/nowhere/mcp-server")
    closed(visit)


def test_what_runs_is_listed_and_stopped(house: House, visit: Visit, browser: Browser) -> None:
    house.script([Call("terminal", {"command": "sleep 671.5"})], [Say("Over.")])
    ann = Visit.begin(house, browser)
    ann.enter(house.new_token("ann"))
    ann.session = ann.new_session()
    ann.say("Wait for it")
    expect(ann.calls).to_contain_text("sleep 671.5")
    dialog = opened(visit, "Running")
    row = dialog.get_by_role("row").filter(has_text="sleep 671.5")
    expect(row).to_contain_text("ann")
    expect(row).to_contain_text("1 request")
    row.get_by_role("button", name=f"Stop {ann.session}").click()
    expect(ann.cut).to_contain_text("stopped in")
    expect(dialog).to_contain_text("Nothing runs.")
    expect(dialog.get_by_role("button", name="Stop all sessions")).to_be_hidden()
    opened(visit, "Audit log")
    expect(dialog.get_by_role("row").nth(1)).to_contain_text("stop_running")
    closed(visit)
    # Others have no admin's view, and see no servers of others.
    ann.page.get_by_role("button", name="Server").click()
    other = ann.page.get_by_role("dialog", name="Server")
    expect(other.get_by_role("tab")).to_have_text(["MCP servers"])
    ann.close()


def test_a_token_is_revoked(house: House, visit: Visit, browser: Browser) -> None:
    rob = Visit.begin(house, browser)
    rob.enter(house.new_token("rob", read_only=True))
    dialog = opened(visit, "Tokens")
    row = dialog.get_by_role("row").filter(has_text="rob")
    expect(row).to_contain_text("valid")
    visit.page.once("dialog", lambda asked: asked.accept())
    row.get_by_role("button", name="Revoke the token of rob").click()
    expect(row).to_contain_text("revoked")
    expect(rob.page.get_by_role("heading", name="Sign in")).to_be_visible()
    rob.context.close()
    opened(visit, "Audit log")
    entry = dialog.get_by_role("row").filter(has_text="revoke_token")
    expect(entry).to_have_count(1)
    expect(entry).to_contain_text("operator")
    closed(visit)


def test_a_session_is_shared_and_taken_back(house: House, visit: Visit, browser: Browser) -> None:
    house.script([Say("Hello."), Wait("shared")])
    visit.say("Begin")
    expect(visit.answers.last).to_have_text("Hello.")
    visit.page.get_by_role("button", name="Share", exact=True).click()
    dialog = visit.page.get_by_role("dialog", name="Share this session")
    expect(dialog).to_contain_text("Nobody but you.")
    name = dialog.get_by_label("Name of the person to invite")
    name.fill("eve")
    name.press("Enter")
    members = dialog.get_by_role("listitem")
    expect(members).to_contain_text("eve")
    eve = Visit.begin(house, browser)
    eve.enter(house.new_token("eve"))
    eve.page.get_by_role("button", name="Accept").click()
    expect(eve.answers).to_have_text(["Hello."])
    expect(eve.page.get_by_role("button", name="Share", exact=True)).to_be_hidden()
    expect(eve.words).to_be_enabled()
    dialog.get_by_label("What eve may do").select_option("read")
    path = f"/v1/sessions/{visit.session}"
    until(lambda: visit.ask("GET", path)["members"] == {"eve": "read"}, "she only reads")
    # Nothing in the log says so: a page that is open learns it when it connects again.
    eve.page.reload()
    expect(
        eve.page.get_by_placeholder("You can read this session, but not write in it.")
    ).to_be_visible()
    dialog.get_by_role("button", name="Remove eve").click()
    expect(dialog).to_contain_text("Nobody but you.")
    expect(eve.page.locator("#banner")).to_contain_text("yours to see")
    eve.close()
    visit.page.keyboard.press("Escape")
    visit.words.press("Escape")
    expect(visit.cut).to_contain_text("stopped in")
