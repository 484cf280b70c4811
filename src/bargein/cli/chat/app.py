"""The terminal program itself: one input line that never blocks, and what scrolls above it.

The prompt is there before anything heavy is loaded. What is typed until the engine is ready is
sent as soon as it is. Keys and commands only start something; whatever waits is a task, so the
line stays alive. Words leave the line only when the session has them: if it refuses, they are
put back.
"""

import sys
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import aclosing
from pathlib import Path

import anyio
from anyio.abc import TaskGroup
from prompt_toolkit.application import Application
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.filters import has_completions
from prompt_toolkit.formatted_text import ANSI
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.layout import (
    BufferControl,
    ConditionalContainer,
    Dimension,
    FormattedTextControl,
    HSplit,
    Layout,
    VSplit,
    Window,
)
from prompt_toolkit.layout.menus import CompletionsMenu
from prompt_toolkit.output.vt100 import Vt100_Output

from bargein.cancel import Cause, Reason, arm_quit_watchdog, disarm_quit_watchdog
from bargein.cancel._loops import call_if_open, loop_caller
from bargein.cli.chat.commands import ChatCompleter, run_command
from bargein.cli.chat.drafts import Draft
from bargein.cli.chat.keys import bindings
from bargein.cli.chat.paint import Painter
from bargein.cli.chat.view import View
from bargein.cli.config import Config
from bargein.cli.signals import heard
from bargein.cli.wiring import Engine, default_agent
from bargein.contracts.event import QuestionAsked, Recorded
from bargein.contracts.message import Mode
from bargein.errors import BargeinError
from bargein.session.actor import Landing
from bargein.session.session import Session
from bargein.session.state import SessionState

FRAME_S = 0.05
LEAVE_S = 5.0
HURRY_S = 0.5
ESCAPE_S = 0.05
INPUT_LINES_MAX = 10


class Chat:
    def __init__(self, session_id: str, config: Config) -> None:
        self.config = config
        self.session_id = session_id
        self.session: Session | None = None
        self.engine: Engine | None = None
        self.hint = ""
        self.left = anyio.Event()
        colour = not config.environment.get("NO_COLOR")
        self.view = View(Painter(colour=colour), self._scroll, time.monotonic)
        self._scrolled: list[str] = []
        self._ready = anyio.Event()
        self._app_ended = anyio.Event()
        self._changed = anyio.Event()
        self._group: TaskGroup | None = None
        self._ctrl_c_at = -10.0
        self._draft = Draft(config.home, session_id)
        self.buffer = Buffer(
            completer=ChatCompleter(self),
            complete_while_typing=True,
            multiline=True,
            history=_history(config.home),
            on_text_changed=lambda _: self._typed(),
        )
        self.app: Application[None] = Application(
            layout=self._layout(),
            key_bindings=bindings(self),
            output=_output(),
            erase_when_done=True,
        )
        self.app.ttimeoutlen = ESCAPE_S
        self.app.timeoutlen = ESCAPE_S

    # What keys and commands use

    @property
    def state(self) -> SessionState | None:
        return self.engine.state(self.session_id) if self.engine is not None else None

    @property
    def busy(self) -> bool:
        state = self.state
        return state is not None and state.busy

    def spawn(self, function: Callable[[], Coroutine[object, object, None]]) -> None:
        if self._group is not None:
            self._group.start_soon(self._guarded, function)

    def submit(self, mode: Mode) -> None:
        """Send what is in the line. Commands start with a slash, shell commands with `!`."""
        text = self.buffer.text.strip()
        if not text:
            if self.state is not None and self.state.held:
                self.spawn(self._continue)
            return
        self.buffer.append_to_history()
        self.buffer.reset()
        if text.startswith("/"):
            self.spawn(lambda: run_command(self, text))
        else:
            self.spawn(lambda: self.send(text, mode))

    async def send(self, text: str, mode: Mode) -> None:
        await self._ready.wait()
        assert self.session is not None
        try:
            sent = await self.session.send(text, mode=mode)
        except BargeinError as error:
            self.view.note("bad", f"not sent: {error}")
            self.put_back(text)
            return
        if sent.disposition != "started":
            self.changed()

    def stop(self) -> None:
        """Stop what runs, now; with a steer pending, send that at once."""
        state = self.state
        if self.engine is None or state is None:
            return
        cause = Cause.REDIRECT if _has_steer(state) else Cause.USER_STOP
        landing = self.engine.land(self.session_id, Reason(cause, "user"))
        if cause is Cause.USER_STOP and self.session is not None:
            session = self.session
            self.spawn(lambda: _interrupt(session, landing))
        self.changed()

    def ctrl_c(self) -> None:
        if self.buffer.text:
            self.buffer.reset()
        elif self.busy and self.view.stopping:
            self.hurry()
        elif self.busy:
            self.stop()
        elif time.monotonic() - self._ctrl_c_at < 2.0:
            self.leave()
        else:
            self._ctrl_c_at = time.monotonic()
            self.hint = "Ctrl-C again leaves"
            self.changed()

    def hurry(self) -> None:
        """Go straight to the kill with what is being stopped."""
        if self.engine is not None:
            self.spawn(self.engine.hurry)

    def leave(self) -> None:
        self.left.set()

    def changed(self) -> None:
        self._changed.set()

    # Running

    async def run(self) -> int:
        caller = loop_caller()
        self.buffer.text = self._draft.kept()
        self.buffer.cursor_position = len(self.buffer.text)

        def leave(number: object) -> None:
            arm_quit_watchdog(LEAVE_S)
            call_if_open(caller, self.left.set)

        with heard(on_interrupt=lambda _: call_if_open(caller, self.ctrl_c), on_leave=leave):
            async with anyio.create_task_group() as group:
                self._group = group
                group.start_soon(self._run_app)
                group.start_soon(self._run_engine)
                group.start_soon(self._paint)
                await self.left.wait()
                if self.app.is_running and not self.app.is_done:
                    self.app.exit()
                await self._app_ended.wait()
                print("Shutting down", file=sys.stderr, flush=True)
                arm_quit_watchdog(LEAVE_S)
                self._group = None
                group.cancel_scope.cancel()
        disarm_quit_watchdog()
        return 0

    async def _run_app(self) -> None:
        try:
            await self.app.run_async(handle_sigint=False)
        finally:
            self._app_ended.set()
            self.left.set()

    async def _run_engine(self) -> None:
        try:
            async with Engine(
                default_agent(self.config), config=self.config, on_notice=self._notice
            ) as engine:
                self.session = await engine.session(self.session_id)
                self.engine = engine
                self.view.note("dim", f"{engine.model_name} · BARGEIN_MODEL sets another · /help")
                self._ready.set()
                self.changed()
                await self._watch(self.session)
        except BargeinError as error:
            self.view.note("bad", str(error))
            await anyio.sleep(2 * FRAME_S)
            self.left.set()

    def _notice(self, words: str) -> None:
        self.hint = words
        self.changed()

    async def _watch(self, session: Session) -> None:
        async with aclosing(session.watch()) as events:
            async for event in events:
                self.view.show(event)
                self.changed()
                if isinstance(event, Recorded) and isinstance(event.event, QuestionAsked):
                    self.hint = "a question waits: /answer"

    async def _paint(self) -> None:
        """Draw at most so often, however much happens; nothing happens, nothing is drawn."""
        while True:
            with anyio.move_on_after(0.25 if self.view.tools else None):
                await self._changed.wait()
            self._changed = anyio.Event()
            self.view.width = self.app.output.get_size().columns
            scrolled, self._scrolled = "".join(self._scrolled), []
            if scrolled and self.app.is_running:
                self._print_above(scrolled)
            self.app.invalidate()
            await anyio.sleep(FRAME_S)

    def _print_above(self, text: str) -> None:
        # The terminal stays in raw mode throughout: leaving it would echo what is being typed.
        output = self.app.output
        self.app.renderer.erase()
        output.enable_autowrap()
        output.write_raw(text.replace("\n", "\r\n"))
        output.flush()
        self.app.renderer.reset()
        self.app._redraw()

    def _typed(self) -> None:
        self.hint = ""
        self._draft.keep(self.buffer.text)

    def _scroll(self, text: str) -> None:
        self._scrolled.append(text)
        self.changed()

    async def _continue(self) -> None:
        if self.session is not None:
            await self.session.continue_()

    async def _guarded(self, function: Callable[[], Awaitable[None]]) -> None:
        try:
            await function()
        except BargeinError as error:
            self.view.note("bad", str(error))

    def put_back(self, text: str) -> None:
        self.buffer.text = f"{text}\n{self.buffer.text}" if self.buffer.text else text
        self.buffer.cursor_position = len(self.buffer.text)

    def _layout(self) -> Layout:
        bottom = FormattedTextControl(lambda: ANSI("\n".join(self._bottom())))
        prompt = Window(FormattedTextControl("> "), width=2, dont_extend_width=True)
        line = Window(
            BufferControl(self.buffer),
            height=Dimension(min=1, max=INPUT_LINES_MAX),
            dont_extend_height=True,
            wrap_lines=True,
        )
        status = Window(FormattedTextControl(lambda: [("class:status", self._status())]), height=1)
        menu = ConditionalContainer(
            CompletionsMenu(max_height=8),
            has_completions,
        )
        body = HSplit(
            [
                Window(bottom, dont_extend_height=True, wrap_lines=False),
                VSplit([prompt, line]),
                menu,
                status,
            ]
        )
        return Layout(body, focused_element=line)

    def _bottom(self) -> list[str]:
        return self.view.bottom(self.state, self.app.output.get_size().rows)

    def _status(self) -> str:
        model = self.engine.model_name if self.engine is not None else ""
        status = self.view.status(self.state, model, self.session_id)
        return f"{status} · {self.hint}" if self.hint else status


def _history(home: Path) -> History:
    try:
        home.mkdir(parents=True, exist_ok=True)
        return FileHistory(home / "history")
    except OSError:
        return InMemoryHistory()


def _output() -> Vt100_Output:
    # Asking the terminal where its cursor is takes a round trip, which over a slow line is felt.
    output = Vt100_Output.from_pty(sys.stdout)
    output.enable_cpr = False
    return output


def _has_steer(state: SessionState) -> bool:
    return any(each.lane == "steer" for each in state.waiting)


async def _interrupt(session: Session, landing: Landing | None) -> None:
    await session.interrupt(landing=landing)
