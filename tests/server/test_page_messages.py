"""What can be done with what was said: who said it, copy it, ask again, go back; and the way to the
sessions and to the latest words."""

from __future__ import annotations

from playwright.sync_api import Browser, Locator, expect

from bargein.contracts.event import FilesRestored, MessageAccepted, TurnHidden
from bargein.models.script import Call, Fail, Say, Wait
from tests.server.page_house import House
from tests.server.page_visit import Visit


def messages(visit: Visit) -> Locator:
    return visit.page.locator(".message")


def do(message: Locator, name: str) -> None:
    message.hover()
    message.get_by_role("button", name=name).click()


def test_every_message_says_who_wrote_it(house: House, visit: Visit, browser: Browser) -> None:
    house.script([Say("Hello."), Wait("both")], [Say("To both.")])
    visit.ask("PATCH", f"/v1/sessions/{visit.session}", {"members": {"ann": "write"}})
    visit.say("From me")
    expect(visit.answers.last).to_have_text("Hello.")
    ann = Visit.begin(house, browser)
    ann.enter(house.new_token("ann"))
    ann.page.goto(f"{house.address}/#/s/{visit.session}")
    expect(messages(ann).locator(".who")).to_have_text(["operator"])
    ann.queue("From Ann")
    expect(visit.page.locator(".waiting .who")).to_have_text("ann")
    house.open_gate("both")
    expect(messages(visit).locator(".about .who")).to_have_text(["You", "ann"])
    expect(messages(ann).locator(".about .who")).to_have_text(["operator", "You"])
    ann.close()


def test_messages_answers_and_code_are_copied(house: House, browser: Browser) -> None:
    visit = Visit.begin(house, browser)
    visit.context.grant_permissions(["clipboard-read", "clipboard-write"])
    visit.enter()
    visit.session = visit.new_session()
    house.script([Say("Take **this**:\n\n```python\nx = 1\n```")])
    visit.say("Give me a line")
    expect(visit.answers.last).to_contain_text("x = 1")
    pasted = "() => navigator.clipboard.readText()"
    for name, text in (
        ("Copy this message", "Give me a line"),
        ("Copy this answer", "Take **this**:\n\n```python\nx = 1\n```"),
        ("Copy code", "x = 1"),
    ):
        button = visit.page.get_by_role("button", name=name)
        button.hover()
        button.click()
        expect(visit.page.get_by_role("button", name=name)).to_have_text("Copied")
        assert visit.page.evaluate(pasted) == text
    visit.close()


def test_a_message_is_changed_and_asked_again(house: House, visit: Visit) -> None:
    house.script([Say("A poem.")], [Say("A song.")])
    visit.say("Write a poem")
    expect(visit.answers.last).to_have_text("A poem.")
    do(messages(visit), "Edit")
    field = visit.page.get_by_label("Change the message")
    expect(field).to_have_value("Write a poem")
    field.fill("Never mind")
    field.press("Escape")
    expect(messages(visit)).to_contain_text("Write a poem")
    do(messages(visit), "Edit")
    field.fill("Write a song")
    field.press("Enter")
    expect(visit.answers.last).to_have_text("A song.")
    expect(messages(visit).last.locator(".words")).to_have_text("Write a song")
    expect(visit.page.locator(".answer.hidden-turn .prose")).to_have_text("A poem.")
    hidden = [each.event.turn for each in visit.log() if isinstance(each.event, TurnHidden)]
    assert hidden == ["t1"]
    assert "Write a poem" not in str(house.model.requests[-1].messages)


def test_a_failed_turn_is_tried_again(house: House, visit: Visit) -> None:
    house.script([Fail(400)], [Say("Now it works.")])
    visit.say("Do it")
    expect(visit.cut).to_contain_text("failed")
    visit.page.locator("li:has(.cut)").get_by_role("button", name="Try again").click()
    expect(visit.answers.last).to_have_text("Now it works.")
    said = [e.event.message.text for e in visit.log() if isinstance(e.event, MessageAccepted)]
    assert said == ["Do it", "Do it"]


def test_going_back_stops_what_runs_only_if_asked_to(house: House, visit: Visit) -> None:
    house.script([Say("On my way"), Wait("never")], [Say("Again.")])
    visit.say("Go")
    expect(visit.answers.last).to_have_text("On my way")
    do(messages(visit), "Try again")
    dialog = visit.page.get_by_role("dialog", name="Ask again")
    expect(dialog).to_contain_text("A turn is running")
    visit.page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    expect(visit.state).to_contain_text("Working")
    do(messages(visit), "Try again")
    dialog.get_by_role("button", name="Stop it and go on").click()
    expect(visit.answers.last).to_have_text("Again.")
    expect(dialog).to_be_hidden()


def test_an_undo_shows_what_it_will_do_and_keeps_what_others_changed(
    house: House, visit: Visit
) -> None:
    one, two = house.workspace / "one.txt", house.workspace / "two.txt"
    one.write_text("first\n")
    two.write_text("first\n")
    house.script(
        [
            Call("write_file", {"path": "one.txt", "content": "changed\n"}),
            Call("write_file", {"path": "two.txt", "content": "changed\n"}),
        ],
        [Say("Both are changed.")],
    )
    visit.ask("PATCH", f"/v1/sessions/{visit.session}", {"mode": "full"})
    visit.say("Change both")
    expect(visit.answers.last).to_have_text("Both are changed.")
    panel = visit.page.get_by_role("complementary")
    panel.get_by_role("button", name="Show the changes").click()
    dialog = visit.page.get_by_role("dialog")
    expect(dialog.locator(".diff-file")).to_have_count(2)
    expect(dialog.locator(".diff-line.removed").first).to_have_text("-first")
    dialog.get_by_role("button", name="Close").click()
    two.write_text("mine\n")
    do(messages(visit), "Undo")
    rows = dialog.locator(".undo-files li")
    expect(rows).to_have_count(2)
    expect(rows.filter(has_text="one.txt")).to_contain_text("changed back")
    expect(rows.filter(has_text="two.txt")).to_contain_text("kept")
    dialog.get_by_role("button", name="Go back").click()
    expect(dialog).to_be_hidden()
    expect(visit.page.locator(".toast")).to_contain_text("1 file put back; 1 file kept")
    assert (one.read_text(), two.read_text()) == ("first\n", "mine\n")
    panel.get_by_role("button", name="Redo").click()
    expect(panel.get_by_role("button", name="Redo")).to_be_hidden()
    assert (one.read_text(), two.read_text()) == ("changed\n", "mine\n")
    restored = [e.event.redo for e in visit.log() if isinstance(e.event, FilesRestored)]
    assert restored == [False, True]


def test_a_rollback_shows_which_files_are_back_and_which_were_kept(
    house: House, visit: Visit
) -> None:
    one, two = house.workspace / "one.txt", house.workspace / "two.txt"
    one.write_text("first\n")
    two.write_text("first\n")
    house.script(
        [
            Call("write_file", {"path": "one.txt", "content": "changed\n"}),
            Call("write_file", {"path": "two.txt", "content": "changed\n"}),
        ],
        [Say("Both are changed."), Wait("never")],
        [Say("Otherwise.")],
    )
    visit.ask("PATCH", f"/v1/sessions/{visit.session}", {"mode": "full"})
    visit.say("Change both")
    expect(visit.answers.last).to_have_text("Both are changed.")
    # The diff waits for the snapshot, which is taken beside the answer: what is written before it
    # cannot be told from what the calls wrote.
    assert "+changed" in visit.ask("POST", f"/v1/sessions/{visit.session}/diff", {})["diff"]
    two.write_text("mine\n")
    more = {"text": "Otherwise", "mode": "rollback"}
    visit.ask("POST", f"/v1/sessions/{visit.session}/messages", more)
    expect(visit.answers.last).to_have_text("Otherwise.")
    told = visit.page.locator(".files-back")
    expect(told.locator("summary")).to_have_text("1 file put back · 1 file kept")
    told.locator("summary").click()
    rows = told.locator("li")
    expect(rows.filter(has_text="one.txt")).to_contain_text("changed back")
    expect(rows.filter(has_text="two.txt")).to_contain_text("kept: changed since")
    assert (one.read_text(), two.read_text()) == ("first\n", "mine\n")
    visit.page.get_by_role("complementary").get_by_role("button", name="Redo").click()
    expect(visit.page.get_by_role("button", name="Redo")).to_be_hidden()
    assert (one.read_text(), two.read_text()) == ("changed\n", "mine\n")


def test_an_undo_offers_what_other_calls_can_undo(house: House, visit: Visit) -> None:
    booked = [Call("book", {"seat": seat}) for seat in ("1A", "2B")]
    house.script([booked[0]], [booked[1]], [Say("Both are booked.")])
    visit.ask("PATCH", f"/v1/sessions/{visit.session}", {"mode": "full"})
    visit.say("Book both")
    expect(visit.answers.last).to_have_text("Both are booked.")
    do(messages(visit), "Undo")
    dialog = visit.page.get_by_role("dialog")
    offers = dialog.locator(".undo-calls li")
    expect(offers).to_have_count(2)
    offers.filter(has_text="release: 2B").get_by_role("checkbox").check()
    dialog.get_by_role("button", name="Go back").click()
    expect(dialog).to_be_hidden()
    expect(visit.calls.filter(has_text="release")).to_be_visible()
    expect(visit.state).to_contain_text("Ready")
    assert house.booked == ["booked 1A", "booked 2B", "released 2B, number 7"]


def test_a_file_that_somebody_changed_goes_back_if_the_user_says_so(
    house: House, visit: Visit
) -> None:
    path = house.workspace / "ours.txt"
    path.write_text("first\n")
    house.script([Call("write_file", {"path": "ours.txt", "content": "theirs\n"})], [Say("Done.")])
    visit.ask("PATCH", f"/v1/sessions/{visit.session}", {"mode": "full"})
    visit.say("Change it")
    expect(visit.answers.last).to_have_text("Done.")
    path.write_text("somebody else's\n")
    do(messages(visit), "Undo")
    dialog = visit.page.get_by_role("dialog")
    dialog.get_by_label("put it back all the same").check()
    dialog.get_by_label("Only the files").check()
    dialog.get_by_role("button", name="Go back").click()
    expect(dialog).to_be_hidden()
    assert path.read_text() == "first\n"
    assert not any(isinstance(each.event, TurnHidden) for each in visit.log())


def test_home_lists_the_sessions_of_late(house: House, browser: Browser) -> None:
    visit = Visit.begin(house, browser, width=390, height=780, touch=True)
    visit.enter_narrow()
    visit.ask("PATCH", f"/v1/sessions/{visit.session}", {"title": "The last of all"})
    visit.page.goto(f"{house.address}/#/")
    recent = visit.page.get_by_role("region", name="Recent").get_by_role("link")
    expect(recent.first).to_contain_text("The last of all")
    assert recent.count() <= 6
    recent.first.tap()
    expect(visit.page.get_by_role("heading", name="The last of all")).to_be_visible()
    visit.close()


def test_the_latest_is_one_press_away(house: House, visit: Visit) -> None:
    house.script([Say("A line.\n\n" * 60), Wait("read"), Say("The end.")])
    visit.say("Talk")
    expect(visit.answers.last).to_contain_text("A line.")
    latest = visit.page.locator(".below")
    expect(latest).to_be_hidden()
    visit.page.locator("#talk").evaluate("(talk) => { talk.scrollTop = 0; }")
    expect(latest).to_have_text("↓ Latest")
    house.open_gate("read")
    expect(latest).to_have_text("↓ New below")
    latest.click()
    expect(visit.page.get_by_text("The end.")).to_be_in_viewport()
    expect(latest).to_be_hidden()


def test_a_session_is_forked_from_an_answer(house: House, visit: Visit) -> None:
    house.script([Say("Red.")], [Say("Blue.")], [Say("Redder.")])
    visit.say("A colour")
    expect(visit.answers.last).to_have_text("Red.")
    visit.say("Another")
    expect(visit.answers.last).to_have_text("Blue.")
    first = visit.session
    answer = visit.page.locator(".answer").first
    answer.hover()
    with visit.following():
        answer.get_by_role("button", name="Fork").click()
    expect(visit.words).to_be_focused()
    assert first not in visit.page.url
    expect(visit.page.locator(".history")).to_have_text(["A colour", "Red."])
    visit.say("More of it")
    expect(visit.answers.last).to_have_text("Redder.")
    told = str(house.model.requests[-1].messages)
    assert "Red." in told
    assert "Blue." not in told
