"""Takes the pictures of the page for the documentation, with the real server and browser.

    ./dev python -m tests.server.page_pictures            # into docs/images
    ./dev python -m tests.server.page_pictures FOLDER     # somewhere else, to look at them

Look at each of them afterwards: light and dark, desktop and phone.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import Browser, expect, sync_playwright

from bargein.models.script import Answer, Call, Pause, Say, Think, Wait
from tests.programs import find, node
from tests.server.page_house import House
from tests.server.page_visit import FLAGS, Visit

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "images"

PLAN = """The plan for 1.4:

1. run the slow tests, while a preview serves the build
2. the release notes, from `git log v1.3..`
3. one question for you about the old API

| suite | tests | last time |
|---|--:|--:|
| unit | 412 | 9 s |
| end to end | 38 | 2 min 40 s |
"""

FIX = """The retry loop waits **before** it looks at the deadline, so its last wait is too long.

This is the smallest change:

```python
async def fetch(url: str, *, deadline: float) -> bytes:
    \"\"\"Fetches `url`, at most until `deadline`.\"\"\"
    for attempt in range(5):
        try:
            return await get(url)   # may raise
        except Unavailable:
            wait_s = min(2 ** attempt, deadline - now())
            if wait_s <= 0:
                raise
            await sleep(wait_s)
```

I have put it into `fetch.py`, and the tests pass."""

OLD = """        except Unavailable:
            wait_s = 2 ** attempt
            await sleep(wait_s)
            if now() > deadline:
                raise
"""
NEW = """        except Unavailable:
            wait_s = min(2 ** attempt, deadline - now())
            if wait_s <= 0:
                raise
            await sleep(wait_s)
"""
FETCH = "from clock import now, sleep\n\n\nasync def fetch(url, deadline):\n" + OLD

STEPS = [
    {"text": "Find the wait that is too long", "state": "done"},
    {"text": "Mend it", "state": "doing"},
    {"text": "Run the tests", "state": "open"},
]

# Stands for the program of a project, which the agent in the pictures works on.
DEV = """#!/bin/sh
if [ "$1" = serve ]; then
    echo listening on 127.0.0.1:8585
else
    for part in queue rollback stream; do
        for n in 1 2 3 4 5 6; do echo "tests/slow/test_$part.py::test_case_$n PASSED"; done
    done
fi
sleep 600.4
"""


class Pictures:
    def __init__(self, house: House, browser: Browser, folder: Path) -> None:
        self.house = house
        self.browser = browser
        self.folder = folder

    def desktop(self, theme: str = "light") -> Visit:
        return self._begin(theme, width=1360, height=850)

    def phone(self, theme: str = "light") -> Visit:
        return self._begin(theme, width=390, height=780, touch=True)

    def _begin(self, theme: str, *, width: int, height: int, touch: bool = False) -> Visit:
        visit = Visit.begin(self.house, self.browser, width=width, height=height, touch=touch)
        visit.page.emulate_media(color_scheme="dark" if theme == "dark" else "light")
        visit.page.goto(f"{visit.address}/#token={visit.token}")
        expect(visit.words).to_be_visible()
        return visit

    def save(self, visit: Visit, name: str) -> None:
        visit.page.mouse.move(2, 2)
        visit.page.wait_for_timeout(350)  # drawers and toasts have come to rest
        visit.page.screenshot(path=self.folder / f"{name}.png")
        sys.stdout.write(f"{name}\n")

    # The scenes, in order: later ones use the sessions of earlier ones.

    def make_others(self) -> None:
        visit = self.desktop()
        for title, text in OTHERS:
            self.house.script([Say(text)])
            visit.session = visit.new_session()
            visit.say(title)
            expect(visit.answers.last).to_be_visible()
            visit.ask("PATCH", f"/v1/sessions/{visit.session}", {"title": title})
        visit.close()

    def home(self) -> None:
        for name, visit in (("page-home", self.desktop()), ("page-home-phone", self.phone("dark"))):
            expect(visit.page.locator(".recent-list li")).to_have_count(len(OTHERS))
            self.save(visit, name)
            visit.close()

    def work_and_receipt(self) -> None:
        visit = self.desktop()
        program = self.house.workspace / "dev"
        program.write_text(DEV)
        program.chmod(0o755)
        self.house.script(
            [
                Say(PLAN),
                Call("terminal", {"command": "./dev test tests/slow --verbose"}),
                Call("terminal", {"command": "./dev serve --port 8585"}),
            ],
        )
        visit.session = visit.new_session()
        visit.ask("PATCH", f"/v1/sessions/{visit.session}", {"title": "Release 1.4"})
        visit.say("Prepare release 1.4. Run the slow tests while you are at it")
        expect(visit.calls.first).to_contain_text("test_stream.py::test_case_6 PASSED")
        expect(visit.calls.nth(1)).to_contain_text("listening")
        visit.queue("Write the announcement, two paragraphs")
        visit.words.fill("Skip the browser tests")
        self.save(visit, "page")
        visit.page.get_by_role("button", name="to the background").nth(1).click()
        expect(visit.calls.nth(1)).to_contain_text("in the background")
        visit.words.fill("")
        visit.words.press("Escape")
        expect(visit.cut).to_contain_text("stopped in")
        visit.cut.click()
        self.save(visit, "page-receipt")
        visit.ask("POST", f"/v1/sessions/{visit.session}/interrupt", {"scope": "session"})
        visit.close()

    def code_and_undo(self) -> None:
        visit = self.desktop("dark")
        (self.house.workspace / "fetch.py").write_text(FETCH)
        self.house.script(
            [
                Think("The deadline is checked after the wait."),
                Call("todo", {"items": STEPS}),
                Call("edit_file", {"path": "fetch.py", "old_text": OLD, "new_text": NEW}),
            ],
            [Call("terminal", {"command": "echo '12 passed in 0.31s'"})],
            [Say(FIX)],
        )
        visit.session = visit.new_session()
        visit.ask("PATCH", f"/v1/sessions/{visit.session}", {"title": "A retry that is too late"})
        visit.say("fetch waits past its deadline. Find out why, and mend it")
        expect(visit.answers.last).to_contain_text("the tests pass")
        self.save(visit, "page-code")
        phone = self.phone()
        phone.page.goto(f"{phone.address}/#/s/{visit.session}")
        expect(phone.answers.last).to_contain_text("the tests pass")
        phone.page.locator(".plan").first.scroll_into_view_if_needed()
        phone.page.locator(".talk").evaluate("(talk) => { talk.scrollTop = 0; }")
        self.save(phone, "page-code-phone")
        phone.close()
        visit.page.locator(".message").hover()
        visit.page.locator(".message").get_by_role("button", name="Undo").click()
        expect(visit.page.locator(".undo-files")).to_contain_text("fetch.py")
        visit.page.get_by_role("dialog").get_by_role("button", name="Show the changes").click()
        expect(visit.page.locator(".diff-file")).to_be_visible()
        self.save(visit, "page-undo")
        visit.close()

    def question_on_a_phone(self) -> None:
        visit = self.phone("dark")
        self.house.script(
            [Say("I look at what is there"), Wait("redirected")],
            [
                Say("The build folder is in the way. That needs your yes."),
                Call("terminal", {"command": "rm -rf build/ && make dist"}),
            ],
        )
        visit.session = visit.new_session()
        visit.ask("PATCH", f"/v1/sessions/{visit.session}", {"title": "Release 1.4"})
        visit.say("Is everything ready?")
        expect(visit.answers.last).to_contain_text("what is there")
        visit.say("Push it!", "Control+Enter")
        expect(visit.page.get_by_role("button", name="Allow once")).to_be_visible()
        self.save(visit, "page-phone")
        visit.words.press("Escape")
        expect(visit.state).to_contain_text("Ready")
        visit.close()

    def search(self) -> None:
        visit = self.desktop()
        visit.page.locator("#find").fill("lock gates")
        expect(visit.page.locator(".found-list a").first).to_be_visible()
        self.save(visit, "page-search")
        visit.close()

    def sub_agents(self) -> None:
        visit = self.desktop()
        tasks = [{"task": "Read the changes since 1.3"}, {"task": "Look for the docs that changed"}]
        self.house.script(
            Answer([Say("Two of us look."), Call("delegate", {"tasks": tasks})], "notes"),
            Answer([Call("terminal", {"command": "./dev log v1.3.. --stat"})], "changes"),
            Answer([Say("Looking."), Pause(600.0)], "docs"),
        )
        visit.session = visit.new_session()
        visit.ask("PATCH", f"/v1/sessions/{visit.session}", {"title": "Release notes"})
        visit.say("Write the release notes")
        expect(visit.page.locator(".call .agent .came").first).to_contain_text("dev log")
        self.save(visit, "page-agents")
        visit.page.get_by_role("button", name="Server").click()
        expect(visit.page.locator(".server tbody tr")).to_have_count(3)
        self.save(visit, "page-server")
        visit.page.keyboard.press("Escape")
        visit.words.press("Escape")
        expect(visit.cut).to_be_visible()
        visit.close()


OTHERS = [
    (
        "Locks and canals",
        "A canal climbs a hill by lock gates: a pound of water is let in, and the boat rises.",
    ),
    (
        "Why the nightly job failed",
        "The nightly job waited for a lock that the backup held. The gates stayed shut.",
    ),
    (
        "Translate the handbook",
        "I have translated the chapter on lock gates into Dutch: *sluisdeuren*.",
    ),
]


def main(folder: Path) -> None:
    os.environ["PLAYWRIGHT_NODEJS_PATH"] = node()
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as home, sync_playwright() as playwright:
        work = Path(home) / "work"
        work.mkdir()
        chromium = playwright.chromium.launch(executable_path=find("chromium"), args=FLAGS)
        with House(Path(home) / "data", work) as house:
            pictures = Pictures(house, chromium, folder)
            scenes: list[Callable[[], None]] = [
                pictures.make_others,
                pictures.home,
                pictures.work_and_receipt,
                pictures.code_and_undo,
                pictures.question_on_a_phone,
                pictures.search,
                pictures.sub_agents,
            ]
            for scene in scenes:
                scene()
        chromium.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
