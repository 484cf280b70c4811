"""A command with `background: true` on the page, in a real browser, with real commands."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import Page, expect

from bargein.models.script import Call, Say, Wait
from tests.server.page_house import House
from tests.server.page_visit import Visit, until
from tests.server.test_page_talk import processes_with


def serving(command: str) -> Call:
    return Call("terminal", {"command": command, "background": True})


def announced(page: Page, words: str) -> None:
    expect(page.locator(".toast").filter(has_text=words)).to_be_visible()
    expect(page.locator("#announcer")).to_contain_text(words)


def test_it_is_seen_with_its_output_stopped_alone_and_announced(house: House, visit: Visit) -> None:
    house.script([serving("echo listening; sleep 613.5")], [Say("It is up.")])
    visit.say("Serve")
    expect(visit.answers.last).to_have_text("It is up.")
    call = visit.calls.filter(has_text="sleep 613.5")
    expect(call).to_contain_text("in the background")
    expect(call.locator("pre")).to_contain_text("listening")
    expect(visit.state).to_have_text("Ready · 1 in the background")
    row = visit.page.locator(".session-row.current .about")
    expect(row).to_have_text("1 in the background")
    # It is all there again after the page was loaded anew.
    visit.page.reload()
    expect(call.locator("pre")).to_contain_text("listening")
    running = visit.page.get_by_label("What is going on").locator(".running-row")
    expect(running).to_contain_text("in the background")
    running.get_by_role("button", name="Stop").click()
    expect(call).to_contain_text("stopped")
    announced(visit.page, "In the background: echo listening; sleep 613.5")
    assert processes_with("613.5") == []
    expect(visit.state).to_contain_text("Held")
    expect(visit.answers).to_have_count(1)


def test_its_failure_is_announced_and_told_to_the_model(
    house: House, visit: Visit, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    command = f"while [ ! -e {go} ]; do sleep 0.05; done; echo broken; exit 3"
    house.script([serving(command)], [Say("It is up.")], [Wait("broke"), Say("It broke.")])
    visit.say("Serve")
    expect(visit.answers.last).to_have_text("It is up.")
    go.touch()
    announced(visit.page, "exit code 3")
    house.open_gate("broke")
    expect(visit.answers.last).to_have_text("It broke.")
    expect(visit.calls.first).to_contain_text("exit code 3")


def test_all_of_it_is_stopped_at_once(house: House, visit: Visit) -> None:
    house.script([serving("sleep 614.5"), serving("sleep 615.5")], [Say("Both are up.")])
    visit.say("Serve")
    expect(visit.state).to_have_text("Ready · 2 in the background")
    until(lambda: len(processes_with("614.5")) == 1, "it runs")
    visit.page.get_by_role("button", name="Stop all").click()
    expect(visit.calls.filter(has_text="stopped")).to_have_count(2)
    assert processes_with("614.5") + processes_with("615.5") == []


def test_one_that_began_long_before_what_is_read_of_the_log_is_seen(
    house: House, visit: Visit
) -> None:
    house.script([serving("echo listening; sleep 616.5")], [Say("It is up.")])
    visit.say("Serve")
    expect(visit.state).to_have_text("Ready · 1 in the background")
    house.rename_many(visit.session, 1_100)
    visit.page.reload()
    call = visit.calls.filter(has_text="sleep 616.5")
    expect(call.locator("pre")).to_contain_text("listening")
    call.get_by_role("button", name="Stop").click()
    expect(call).to_contain_text("stopped")
    assert processes_with("616.5") == []
