"""The page for fingers, on narrow screens, in colours that the reader chose; and notifications."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from bargein.models.script import Call, Say, Wait
from tests.server.page_house import House
from tests.server.page_visit import Visit, until

LONG = "Donaudampfschifffahrtselektrizitätenhauptbetriebswerkbauunterbeamtengesellschaft" * 4

# Everything one can press that is smaller than a finger. Links inside of a text are as high as it.
SMALL = """() =>
  [...document.querySelectorAll("button, a, input, select, textarea, summary")]
    .filter((each) => each.checkVisibility({ visibilityProperty: true, opacityProperty: true }))
    .filter((each) => !each.closest(".prose p, .skip, .scrim") && !each.matches(".unseen, .skip"))
    .map((each) => [each, each.getBoundingClientRect()])
    .filter(([, box]) => box.width > 0 && (box.height < 43.5 || box.width < 43.5))
    .map(([each, box]) => `${each.outerHTML.slice(0, 120)} ${box.width}x${box.height}`)"""

WIDER = """() => {
  const wide = (each) => each.scrollWidth > each.clientWidth + 1;
  return ["#talk", "#foot", "#bar", "body"].filter((name) => wide(document.querySelector(name)));
}"""


def test_what_one_presses_is_large_enough_for_a_finger(house: House, browser: Browser) -> None:
    house.script(
        [Say("One\n\n```python\nx = 1\n```"), Call("terminal", {"command": "rm -rf nothing"})],
        [Say("Done.")],
    )
    visit = Visit.begin(house, browser, width=390, height=780, touch=True)
    visit.enter_narrow()
    visit.say("Go")
    expect(visit.page.get_by_role("button", name="Allow once")).to_be_visible()
    visit.queue("later")
    assert visit.page.evaluate(SMALL) == []
    for name in ("Sessions", "What is going on"):
        visit.page.get_by_role("button", name=name, exact=True).tap()
        visit.page.wait_for_timeout(300)  # the drawer slides
        assert visit.page.evaluate(SMALL) == []
        visit.page.keyboard.press("Escape")
    visit.page.get_by_role("button", name="Deny").tap()
    expect(visit.answers.last).to_have_text("Done.")
    visit.page.goto(f"{house.address}/#/")
    expect(visit.page.get_by_role("region", name="Recent")).to_be_visible()
    assert visit.page.evaluate(SMALL) == []
    visit.close()


# What sticks out of the card that it is in, and what lies over its neighbour in the bar.
STICKS_OUT = """() => {
  const boxed = [...document.querySelectorAll("button, select, input, textarea, h1, h2, .state")]
    .filter((each) => each.checkVisibility({ visibilityProperty: true, opacityProperty: true }))
    .filter((each) => !each.closest(".table"))
    .map((each) => [each, each.closest(".question, .composer, .dialog, .bar")])
    .filter(([, card]) => card !== null && card.checkVisibility())
    .filter(([each, card]) => {
      const [inner, outer] = [each.getBoundingClientRect(), card.getBoundingClientRect()];
      return inner.right > outer.right + 0.5 || inner.left < outer.left - 0.5;
    });
  const state = document.querySelector(".bar .state").getBoundingClientRect();
  const over = [...document.querySelectorAll(".bar .button")]
    .map((each) => [each, each.getBoundingClientRect()])
    .filter(([, box]) => box.width && box.left > 100 && box.left < state.right);
  return [...boxed, ...over].map(([each]) => each.outerHTML.slice(0, 120));
}"""


def test_on_the_narrowest_phone_nothing_sticks_out(house: House, browser: Browser) -> None:
    choices = ["Ada", "A name that is much longer than both of the others together"]
    house.script(
        [Call("ask", {"question": "Which name?", "choices": choices})],
        [Say("Fine."), Wait("narrow")],
    )
    visit = Visit.begin(house, browser, width=320, height=640, touch=True)
    visit.enter_narrow()
    visit.say("Name it")
    expect(visit.page.get_by_role("button", name=choices[1])).to_be_visible()
    assert visit.page.evaluate(STICKS_OUT) == []
    assert visit.page.evaluate(SMALL) == []
    stop = visit.page.locator(".composer .stop").bounding_box()
    send = visit.page.locator(".composer .primary").bounding_box()
    assert stop is not None
    assert send is not None
    assert stop["y"] == pytest.approx(send["y"], abs=1)
    # A dialog above a drawer: Escape closes the dialog first.
    visit.page.get_by_role("button", name="Sessions", exact=True).tap()
    visit.page.get_by_role("button", name="Server", exact=True).tap()
    dialog = visit.page.get_by_role("dialog", name="Server")
    expect(dialog.locator("tbody tr").first).to_be_visible()
    assert visit.page.evaluate(STICKS_OUT) == []
    visit.page.keyboard.press("Escape")
    expect(dialog).not_to_be_visible()
    expect(visit.page.get_by_role("button", name="Server", exact=True)).to_be_visible()
    visit.page.keyboard.press("Escape")
    expect(visit.state).to_contain_text("Needs your answer")
    visit.page.get_by_role("button", name="Ada").tap()
    expect(visit.answers.last).to_contain_text("Fine.")
    house.open_gate("narrow")
    expect(visit.state).to_contain_text("Ready")
    visit.close()


@pytest.mark.parametrize("width", [320, 390, 768, 1360])
def test_long_words_make_nothing_wider_than_the_screen(
    house: House, browser: Browser, width: int
) -> None:
    house.script(
        [
            Say(f"{LONG}\n\n`{LONG}`\n\n```\n{LONG}\n```\n\n| a | {LONG} |\n|---|---|\n| b | c |"),
            Call("terminal", {"command": f"echo {LONG}; rm -rf nothing"}),
        ]
    )
    visit = Visit.begin(house, browser, width=width, height=700)
    visit.enter_narrow()
    visit.ask("PATCH", f"/v1/sessions/{visit.session}", {"title": LONG[:200]})
    visit.say(LONG)
    expect(visit.page.get_by_role("button", name="Allow once")).to_be_visible()
    visit.queue(LONG[:250])
    assert visit.page.evaluate(WIDER) == []
    visit.words.press("Escape")
    expect(visit.cut).to_be_visible()
    visit.page.goto(f"{house.address}/#/")
    expect(visit.page.get_by_role("region", name="Recent")).to_be_visible()
    assert visit.page.evaluate(WIDER) == []
    visit.close()


def test_in_forced_colours_states_differ_by_more_than_colour(
    house: House, browser: Browser
) -> None:
    house.script([Call("terminal", {"command": "exit 3"})], [Call("terminal", {"command": "true"})])
    visit = Visit.begin(house, browser, forced_colors="active")
    visit.enter()
    visit.session = visit.new_session()
    visit.say("Go")
    dots = visit.page.locator(".talk .call .dot")
    expect(dots).to_have_count(2)
    expect(dots.nth(1)).to_have_class("dot finished")
    style = "(dot) => { const s = getComputedStyle(dot); return [s.borderRadius, s.borderStyle]; }"
    shapes = [dots.nth(number).evaluate(style) for number in range(2)]
    assert shapes[0] != shapes[1]
    expect(visit.page.locator(".session-row.current")).to_have_css("outline-style", "solid")
    visit.close()


# A browser that notifies; what it was asked to show is kept for the test.
NOTIFYING = """() => {
  window.shown = [];
  window.Notification = class extends EventTarget {
    static permission = "default";
    static async requestPermission() { return (Notification.permission = "granted"); }
    constructor(title, { body }) { super(); window.shown.push([title, body]); this.title = title; }
    close() {}
  };
  Object.defineProperty(document, "hidden", { get: () => window.lookingAway ?? false });
}"""


def test_notifications_come_on_request_and_only_to_somebody_who_looks_away(
    house: House, browser: Browser
) -> None:
    visit = Visit.begin(house, browser)
    visit.page.add_init_script(f"({NOTIFYING})()")
    visit.enter()
    visit.session = visit.new_session()
    visit.ask("PATCH", f"/v1/sessions/{visit.session}", {"title": "Cleaning"})

    def shown() -> list[Any]:
        return list(visit.page.evaluate("() => window.shown"))

    def danger() -> None:
        house.script([Call("terminal", {"command": "rm -rf nothing-here"})], [Say("Fine.")])
        visit.say("Clean up")
        expect(visit.page.get_by_role("button", name="Allow once")).to_be_visible()
        visit.page.get_by_role("button", name="Deny").click()
        expect(visit.answers.last).to_have_text("Fine.")
        expect(visit.state).to_have_text("Ready")

    visit.page.evaluate("() => { window.lookingAway = true; }")
    danger()
    assert shown() == []
    visit.page.get_by_role("button", name="Notify me").click()
    expect(visit.page.get_by_role("button", name="Notifies")).to_be_visible()
    danger()
    ((title, body),) = shown()
    assert title == "Cleaning needs an answer"
    assert "rm -rf nothing-here" in body
    visit.page.evaluate("() => { window.lookingAway = false; }")
    danger()
    assert len(shown()) == 1
    visit.close()


def test_a_long_turn_that_ends_is_told(house: House, browser: Browser) -> None:
    visit = Visit.begin(house, browser)
    visit.page.add_init_script(f"({NOTIFYING})()")
    visit.page.clock.install()
    visit.enter()
    visit.session = visit.new_session()
    visit.ask("PATCH", f"/v1/sessions/{visit.session}", {"title": "Counting"})
    visit.page.get_by_role("button", name="Notify me").click()
    house.script([Say("One"), Wait("counted"), Say(" two.")])
    visit.say("Count")
    expect(visit.answers.last).to_have_text("One")
    visit.page.evaluate("() => { window.lookingAway = true; }")
    visit.page.clock.fast_forward(11_000)
    house.open_gate("counted")
    until(lambda: visit.page.evaluate("() => window.shown.length"), "it was told")
    assert visit.page.evaluate("() => window.shown") == [["Counting is done", "One two."]]
    visit.close()
