"""One session on every screen: three terminals, a page of the size of a phone, two programs, and
acts that a seed picks.

All of it is real: a host of a data directory, terminals, a browser that came in by an invitation,
clients by the owner's door. Each message has a word of its own, so that each can be looked for on
each screen. `Screens.act` does one act, without waiting for others; `Screens.settle` brings the
session to rest, and `Screens.check` compares what every screen shows with the log.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import signal
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import aclosing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from bargein.cli.hosting import LOG_FILE
from bargein.client import Client, Disconnected, Session
from bargein.client.wire import read
from bargein.contracts.event import MessageAccepted, Recorded
from bargein.contracts.guests import SharedView
from bargein.errors import BargeinError
from bargein.runtime.data_directory import DOOR_FILE
from bargein.runtime.directory_lock import owner_of
from bargein.session.broadcast import Watched
from bargein.view import Picture
from tests.cli.screen import CTRL_D, CTRL_U, ESCAPE, Screen
from tests.client.joined import shown
from tests.session.laws import check_log

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

T = TypeVar("T")

WITHIN_S = 50.0
ROWS, COLUMNS = 50, 110
SCRIPT = """
repeat = true
[[answers]]
when = "count"
steps = [{ do = "say", text = "for ever and ever" }, { do = "pause", seconds = 600.0 }]
[[answers]]
when = "which"
[[answers.steps]]
do = "call"
name = "ask"
arguments = { question = "Which one?", choices = ["left", "right"] }
[[answers]]
steps = [{ do = "say", text = "done already" }]
"""
WHO = ("terminal 0", "terminal 1", "terminal 2", "program 0", "program 1", "page")
KINDS = ("quick", "quick", "count", "which")
# A command that was refused is back in the line, above what was typed meanwhile: two for each line.
CLEAR = CTRL_U * 10
WORD = re.compile(r"\bw\d+x\b")


class Program:
    """A client in the loop of its own thread: it watches from the first event on."""

    def __init__(self, home: Path, session: str, run: Callable[..., Any]) -> None:
        self._run = run
        self._home = home
        self._name = session
        self.events: list[Watched] = []
        self.join()

    def join(self) -> None:
        self._run(self._join())

    async def _join(self) -> None:
        # After a kill it is a terminal that starts the next host; a program waits for that.
        until = time.monotonic() + WITHIN_S
        while True:
            self.client = Client(f"unix:{self._home / DOOR_FILE}", patience_s=WITHIN_S)
            try:
                await self.client.__aenter__()
                break
            except Disconnected:
                if time.monotonic() > until:
                    raise
                await asyncio.sleep(0.05)
        self.session: Session = await self.client.session(self._name)
        self._watching = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        seen = [each.seq for each in self.events if isinstance(each, Recorded)]
        async with aclosing(self.session.watch(after=seen[-1] if seen else 0)) as events:
            async for event in events:
                self.events.append(event)

    def leave(self) -> None:
        self._run(self._leave())

    async def _leave(self) -> None:
        self._watching.cancel()
        with suppress(asyncio.CancelledError):
            await self._watching
        await self.client.__aexit__(None, None, None)

    def do(self, doing: Coroutine[Any, Any, T]) -> T | None:
        """What is over, or refused, is as good as done."""
        try:
            found: T = self._run(doing)
        except BargeinError:
            return None
        return found

    @property
    def seqs(self) -> list[int]:
        return [each.seq for each in self.events if isinstance(each, Recorded)]


class Screens:
    def __init__(self, folder: Path, browser: Browser, seed: int) -> None:
        self.random = random.Random(seed)
        self.folder, self.data = folder, folder / "data"
        self.said: list[str] = []
        self.unsent: set[str] = set()
        self.journal: list[str] = []
        self._by = ""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        first = self._open()
        first.wait_ready()
        first.enter(self._word("quick"))
        first.wait_for("done already")
        self.session = self._run(self._find())
        self.terminals = [first, self._reopen(), self._reopen()]
        self.programs = [Program(self.data, self.session, self._run) for _ in range(2)]
        self.page: Page = browser.new_context(
            viewport={"width": 390, "height": 844},
            has_touch=True,
            is_mobile=True,
            ignore_https_errors=True,
        ).new_page()
        self.share()

    # What it is made of

    def _run(self, doing: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(doing, self._loop).result(WITHIN_S)

    async def _find(self) -> str:
        async with Client(f"unix:{self.data / DOOR_FILE}") as client:
            (found,) = await client.sessions()
            return found.id

    def _open(self, *arguments: str) -> Screen:
        return Screen(
            *arguments,
            home=self.folder,
            script=SCRIPT,
            rows=ROWS,
            columns=COLUMNS,
            BARGEIN_HOME=str(self.data),
            BARGEIN_CHAT_HOST="1",
            BARGEIN_SHARE_ADDRESS="127.0.0.1",
            BARGEIN_CHAT_LEAVE="keep",
        )

    def _reopen(self) -> Screen:
        screen = self._open("--resume", self.session)
        screen.wait_until(lambda: "/help" in screen.text, "the program")
        return screen

    def _word(self, kind: str) -> str:
        word = f"w{len(self.said)}x"
        self.said.append(word)
        return f"{word} {kind}"

    def close(self) -> None:
        for program in self.programs:
            program.leave()
        self.page.context.close()
        for screen in self.terminals:
            screen.close()
        owner = owner_of(self.data)
        if owner is not None:
            os.kill(owner.pid, signal.SIGKILL)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    # Acts

    def act(self) -> str:
        """Does one act and returns its name."""
        acts: list[tuple[int, Callable[[], None]]] = [
            (10, self.send),
            (6, self.stop),
            (4, self.answer),
            (4, self.edit),
            (2, self.detach),
            (1, self.unshare),
            (1, self.kill_owner),
        ]
        self._by = ""
        (chosen,) = self.random.choices([act for _, act in acts], [weight for weight, _ in acts])
        try:
            chosen()
        finally:
            self.journal.append(f"{time.strftime('%T')} {chosen.__name__} {self._by}")
        # A terminal that nobody reads would stop to write.
        for screen in self.terminals:
            while screen.read(0):
                pass
        return chosen.__name__

    def _anyone(self, *, but_page: bool = False) -> int:
        by = self.random.randrange(len(WHO) - but_page)
        self._by = WHO[by]
        return by

    def send(self) -> None:
        by = self._anyone()
        text = self._word(self.random.choice(KINDS))
        self._by += f" {text}"
        if by < 3:
            self.terminals[by].enter(f"{CLEAR}{text}")
        elif by < 5:
            mode = self.random.choice(["steer", "queue", "interrupt"])
            self._run(self.programs[by - 3].session.send(text, mode=mode))
        else:
            self.page.locator("#words").fill(text)
            self.page.locator("#words").press("Enter")
            self.page.get_by_text(text.partition(" ")[0]).first.wait_for()

    def stop(self) -> None:
        by = self._anyone()
        if by < 3:
            self.terminals[by].type(ESCAPE)
        elif by < 5:
            program = self.programs[by - 3]
            program.do(program.session.interrupt())
        else:
            self._touch("Stop")

    def answer(self) -> None:
        by, choice = self._anyone(), self.random.choice(["left", "right"])
        program = self.programs[by % 2]
        for asked in self._run(program.session.questions())[:1]:
            if by < 3:
                self.terminals[by].enter(f"{CLEAR}/answer {choice}")
            elif by < 5:
                program.do(program.session.answer(asked.id, choice))
            else:
                self._touch(choice)

    def edit(self) -> None:
        by = self._anyone(but_page=True)
        program = self.programs[by % 2]
        items = self._run(program.session.inbox())
        if not items:
            return
        item = self.random.choice(items).message
        if by < 3:
            self.terminals[by].enter(f"{CLEAR}/inbox drop {item.id}")
        else:
            program.do(program.session.edit(item.id, f"{item.text} again"))

    def detach(self) -> None:
        by = self._anyone()
        if by < 3:
            leaving = self.terminals[by]
            leaving.type(CLEAR + CTRL_D)
            leaving.exit_code()
            self.terminals[by] = self._reopen()
        elif by < 5:
            self.programs[by - 3].leave()
            self.programs[by - 3].join()
        else:
            self._reload()

    def _reload(self) -> None:
        """Loads the page anew. After a kill nobody listens at its address for a moment."""
        from playwright.sync_api import Error as PageError

        until = time.monotonic() + WITHIN_S
        while True:
            try:
                self.page.reload()
                return
            except PageError:
                if time.monotonic() > until:
                    raise
            time.sleep(0.05)

    def unshare(self) -> None:
        by = self.terminals[self._anyone() % 3]
        by.enter(f"{CLEAR}/unshare")
        # The words of an earlier one may still be on the screen.
        until = time.monotonic() + WITHIN_S
        while self._run(self._shared_at()):
            assert time.monotonic() < until, by.text
            by.read(0.05)
        self.share()

    def share(self) -> None:
        """Invites the phone, which comes in by the address that it is shown. Put out before, the
        page says so, or cannot reach the address any more: that closes with the last share."""
        shared = self._run(self._invite())
        if self.page.url != "about:blank":
            self.unsent |= self._unsent_on_page()
        self.page.goto("about:blank")
        self.page.goto(shared)
        self.page.locator("#words").wait_for()

    async def _shared_at(self) -> str:
        program = self.programs[0]
        shared = await program.client.connection.ask(
            "list_guests", params={"session": program.session.id}
        )
        return read(SharedView, shared).address

    async def _invite(self) -> str:
        from tests.client.test_guests import invite

        program = self.programs[0]
        return (await invite(program.client, program.session)).address

    def _unsent_on_page(self) -> set[str]:
        """Returns the words that the page could not send: it shows them, and only whoever wrote
        them can send them. Another guest, as whom the phone comes in again, does not see them."""
        kept = self.page.evaluate("() => sessionStorage.getItem('bargein.outbox') ?? ''")
        return set(WORD.findall(kept))

    def kill_owner(self) -> None:
        owner = owner_of(self.data)
        if owner is not None:
            with suppress(ProcessLookupError):
                os.kill(owner.pid, signal.SIGKILL)

    def shown(self) -> str:
        """Returns what every screen shows, and the end of the host's log, to find a fault by."""
        texts = [screen.text for screen in self.terminals]
        with suppress(Exception):
            texts.append(self.page.locator("body").inner_text(timeout=1000))
        with suppress(OSError):
            texts.append((self.data / LOG_FILE).read_text()[-4000:])
        return "\n---\n".join(texts)

    def _touch(self, name: str) -> None:
        button = self.page.get_by_role("button", name=name, exact=True)
        with suppress(Exception):  # it may be gone by now
            button.first.click(timeout=300)

    # The end

    def settle(self) -> None:
        """Brings the session to rest, with one message more that every screen must show."""
        program = self.programs[0]
        until = time.monotonic() + WITHIN_S
        while True:
            for screen in self.terminals:
                while screen.read(0.05):
                    pass
            program.do(program.session.interrupt(scope="session"))
            for item in self._run(program.session.inbox()):
                program.do(program.session.withdraw(item.message.id))
            for asked in self._run(program.session.questions()):
                program.do(program.session.dismiss(asked.id))
            log = self._run(program.session.events())
            accepted = {word for each in log for word in words_of(each)}
            missing = set(self.said) - accepted - self.unsent
            state = self._run(program.session.state())
            going = self._unsent_on_page()
            if not (missing or going or state.busy or state.waiting or state.questions):
                break
            if going:
                # A stop came before they were sent, so whoever wrote them is asked.
                self._touch("Send again")
            if time.monotonic() > until:
                shown_now = "\n---\n".join(screen.text for screen in self.terminals)
                raise AssertionError(f"missing or running: {missing}\n{shown_now}")
        last = self._word("quick")
        self._run(program.session.send(last))
        self._run(program.session.settled())
        for screen in self.terminals:
            screen.wait_for(last)
            # What was refused is in the line again.
            screen.type(CLEAR)
            screen.wait_ready()
        self.page.get_by_text(last).first.wait_for()
        self.page.wait_for_function(
            "() => document.querySelector('.bar .state')?.textContent === 'Ready'"
        )

    def check(self) -> None:
        """Every screen ends with the same picture; nothing is lost, and nothing is there twice."""
        session = self.programs[0].session
        log = self._run(session.events())
        accepted = [word for each in log for word in words_of(each)]
        assert len(accepted) == len(set(accepted))
        assert set(self.said) - self.unsent <= set(accepted) <= set(self.said)
        check_log(log, waiting=())
        for program in self.programs:
            self._catch_up(program, log[-1].seq)
            assert program.seqs == list(range(1, log[-1].seq + 1))
            assert shown(program.events, session.id) == shown(log, session.id)
        picture = Picture(session.id)
        for each in log:
            picture.apply(each)
        taken = [
            word
            for turn in picture.turns.values()
            for message in turn.messages
            for word in WORD.findall(picture.messages[message].text)
        ]
        on_page = WORD.findall("\n".join(self.page.locator(".items .message").all_inner_texts()))
        assert on_page == taken[-len(on_page) :]
        assert len(on_page) >= min(len(taken), 10)
        for screen in self.terminals:
            lines = [line for line in screen.text.splitlines() if line.startswith("> ")]
            words = [word for line in lines for word in WORD.findall(line)]
            assert words == taken[-len(words) :], screen.text
            assert words

    def _catch_up(self, program: Program, seq: int) -> None:
        until = time.monotonic() + WITHIN_S
        while program.seqs[-1:] != [seq]:
            assert time.monotonic() < until, f"{program.seqs[-1:]} is not {seq}"
            time.sleep(0.02)


def words_of(recorded: Recorded) -> list[str]:
    event = recorded.event
    return WORD.findall(event.message.text) if isinstance(event, MessageAccepted) else []


def play(
    folder: Path,
    browser: Browser,
    seed: int,
    acts: int,
    tell: Callable[[int], None] = lambda done: None,
) -> list[str]:
    """Does so many acts, and checks the end; `tell` gets how many are done. A failure has the acts
    and the screens as notes, because a seed does not repeat who was faster."""
    screens = Screens(folder, browser, seed)
    done: list[str] = []
    try:
        while len(done) < acts:
            done += [screens.act()]
            tell(len(done))
        screens.settle()
        screens.check()
    except BaseException as error:
        error.add_note(f"seed {seed}:\n" + "\n".join(screens.journal))
        error.add_note(screens.shown())
        raise
    finally:
        screens.close()
    return done
