"""A person at the page: a context of a real browser, with one method for each thing people do."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from playwright.sync_api import Browser, BrowserContext, Locator, Page, expect

from bargein.contracts.event import Recorded
from tests.server.page_house import START_TOKEN, House

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
WITHIN_MS = 20_000

expect.set_options(timeout=WITHIN_MS)

# Heard after the page's own listener: it has turned to the other session by then.
LISTEN = """() => {
    window.followed = false;
    window.addEventListener("hashchange", () => { window.followed = true; }, { once: true });
}"""


@dataclass
class Visit:
    """`faults` are errors of the page's own scripts, and what its content policy refused.
    `through`: the address of a relay in front of the house, if there is one."""

    house: House
    context: BrowserContext
    page: Page
    through: str = ""
    session: str = ""
    token: str = START_TOKEN
    requests: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    @classmethod
    def begin(
        cls,
        house: House,
        browser: Browser,
        *,
        width: int = 1360,
        height: int = 860,
        through: str = "",
        touch: bool = False,
        forced_colors: Literal["active"] | None = None,
    ) -> Visit:
        context = browser.new_context(
            viewport={"width": width, "height": height},
            has_touch=touch,
            is_mobile=touch,
            forced_colors=forced_colors,
        )
        context.set_default_timeout(WITHIN_MS)
        page = context.new_page()
        visit = cls(house, context, page, through)
        page.on("request", lambda request: visit.requests.append(request.url))
        page.on("pageerror", lambda error: visit.faults.append(str(error)))
        page.on("console", lambda told: visit._hear(told.text))
        return visit

    def _hear(self, text: str) -> None:
        if "Content Security Policy" in text or "TrustedHTML" in text:
            self.faults.append(text)

    def close(self) -> None:
        self.context.close()
        assert self.faults == []

    @property
    def address(self) -> str:
        """The address of the page, without a slash at the end."""
        return self.through or self.house.address

    def enter(self, token: str = START_TOKEN) -> None:
        self.token = token
        if token == START_TOKEN:
            self.page.goto(f"{self.address}/#token={token}")
        else:
            self.page.goto(self.address)
            self.page.get_by_label("Token").fill(token)
            self.page.get_by_role("button", name="Enter").click()
        expect(self.page.get_by_role("button", name="New session")).to_be_visible()

    def enter_narrow(self) -> None:
        """On a phone the list of sessions is a drawer."""
        self.page.goto(f"{self.address}/#token={START_TOKEN}")
        expect(self.words).to_be_visible()
        self.session = self.new_session()

    def ask(self, method: str, path: str, data: object = None) -> Any:
        """Asks the API directly. Returns the JSON."""
        headers = {"authorization": f"Bearer {self.token}"}
        answer = self.page.request.fetch(
            f"{self.house.address}{path}", method=method, headers=headers, data=data
        )
        assert answer.ok, answer.text()
        return answer.json() if answer.body() else None

    def new_session(self) -> str:
        """Makes a session, shows it and returns its id. The page itself makes one with a
        message."""
        session: str = self.ask("POST", "/v1/sessions", {})["session"]["id"]
        with self.following():
            self.page.evaluate("(id) => { location.hash = `#/s/${id}`; }", session)
        expect(self.state).to_have_text("Ready")
        return session

    @contextmanager
    def following(self) -> Iterator[None]:
        """Around what opens another session: until the page shows that one. The address alone
        changes a moment earlier, and what is typed in that moment is a draft of the old one."""
        self.page.evaluate(LISTEN)
        yield
        self.page.wait_for_function("() => window.followed")

    def wait_for_fault(self) -> str:
        """A fault is heard of a moment after it is seen on the page."""
        deadline = time.monotonic() + WITHIN_MS / 1000
        while not self.faults:
            assert time.monotonic() < deadline, "no fault was heard of"
            self.page.wait_for_timeout(10)
        return self.faults[0]

    # What one sees

    @property
    def words(self) -> Locator:
        return self.page.locator("#words")

    @property
    def items(self) -> Locator:
        return self.page.locator(".items")

    @property
    def answers(self) -> Locator:
        return self.page.locator(".answer .prose")

    @property
    def calls(self) -> Locator:
        return self.page.locator(".call")

    @property
    def cut(self) -> Locator:
        """The line of a turn that ended early."""
        return self.page.locator(".cut summary")

    @property
    def waiting(self) -> Locator:
        return self.page.locator(".waiting .text")

    @property
    def state(self) -> Locator:
        return self.page.locator(".bar .state")

    # What one does

    def say(self, text: str, key: str = "Enter") -> None:
        self.words.fill(text)
        self.words.press(key)

    def queue(self, text: str) -> None:
        self.words.fill(text)
        self.page.get_by_role("radio", name="Queue").click()
        self.words.press("Enter")
        expect(self.waiting.get_by_text(text)).to_be_visible()

    # What is behind it

    def log(self) -> list[Recorded]:
        return self.house.events(self.session)


def until(condition: Callable[[], object], what: str) -> None:
    """Waits for something that the page does not show, such as the end of a process."""
    deadline = time.monotonic() + WITHIN_MS / 1000
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)
