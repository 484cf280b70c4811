"""The drawing terminal: an input line that never blocks, and the text that scrolls above it.

The prompt appears before anything heavy is loaded. Input typed until the engine is ready is sent as
soon as it is. Keys and commands only start work; everything that waits is a task, so the line stays
responsive. Words leave the line only when the session has them: if it refuses them, they are put
back.
"""

import math
import sys
import time
from collections.abc import Coroutine

import anyio
from anyio.abc import TaskGroup
from prompt_toolkit.application.current import set_app
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.filters import Condition, has_completions, is_searching
from prompt_toolkit.formatted_text import ANSI, StyleAndTextTuples
from prompt_toolkit.input import Input
from prompt_toolkit.layout import (
    BufferControl,
    ConditionalContainer,
    Dimension,
    FormattedTextControl,
    HSplit,
    Layout,
    SearchBufferControl,
    VSplit,
    Window,
)
from prompt_toolkit.layout.menus import CompletionsMenu
from prompt_toolkit.layout.processors import BeforeInput
from prompt_toolkit.output.color_depth import ColorDepth
from prompt_toolkit.output.vt100 import Vt100_Output
from prompt_toolkit.styles import Style

from bargein.cancel._loops import call_if_open, loop_caller
from bargein.cli.chat.before import Called, Piece
from bargein.cli.chat.commands import run_command
from bargein.cli.chat.completer import ChatCompleter
from bargein.cli.chat.input_line import Draft, KeptHistory, Pastes
from bargein.cli.chat.keyboard import Keyboard
from bargein.cli.chat.keys import bindings
from bargein.cli.chat.mentions import mention_of
from bargein.cli.chat.notifying import means_of, sequence, worth_telling
from bargein.cli.chat.paint import LINE_COLOURS, Painter, symbols_for
from bargein.cli.chat.picking import pick_of
from bargein.cli.chat.resizing import Drawing, ScreenOutput, reflows
from bargein.cli.chat.status import status
from bargein.cli.chat.talk import COME_BACK, Talk, Work
from bargein.cli.chat.view import View
from bargein.cli.joining import OpenEngine, hosted_engine
from bargein.cli.leaving import Leaving
from bargein.cli.signals import heard, tidied_before_death
from bargein.contracts.chat_commands import chat_command_of
from bargein.contracts.event import Recorded
from bargein.contracts.live import ReasoningDelta, TextDelta
from bargein.contracts.message import Mode
from bargein.contracts.tool import Question
from bargein.errors import BargeinError, UserError
from bargein.runtime.config import Config
from bargein.runtime.data_directory import explain_data_directory
from bargein.runtime.key_names import shown
from bargein.session.broadcast import Watched
from bargein.view import Change, ShownCall

FRAME_S = 0.03
SPIN_S = 0.12
# How long the beginning of a key sequence waits for the rest. A lone Escape does not wait, unless
# `chat.escape_wait_ms` is set.
SEQUENCE_REST_S = 0.025
SEQUENCE_S = 0.005
AGAIN_S = 2.0
LEAVE_AGAIN_S = 5.0
# How long leaving waits for the session to take words that were sent.
HAND_OVER_S = 10.0
INPUT_LINES_MAX = 10
HISTORY_CHARACTERS_MAX = 10_000


class Chat:
    """A `Face` that draws. `keyboard` is the source of keys, if it is not the terminal."""

    def __init__(
        self,
        config: Config,
        *,
        resume: str | None = None,
        go_on: bool = False,
        any_folder: bool = False,
        share: bool = False,
        come_back: str = COME_BACK,
        open_engine: OpenEngine = hosted_engine,
        keyboard: Input | None = None,
    ) -> None:
        self.keys = {action: shown(names[0]) for action, names in config.keys().items()}
        self.talk = Talk(
            config,
            self,
            resume=resume,
            go_on=go_on,
            any_folder=any_folder,
            share=share,
            come_back=come_back,
            open_engine=open_engine,
        )
        self.left = anyio.Event()
        colour = not config.environment.get("NO_COLOR")
        symbols = symbols_for(sys.stdout.encoding or "ascii", config.environment)
        self._painter = Painter(colour=colour, symbols=symbols)
        self.view = View(self._painter, self._scroll, self.talk.activity, self.talk.now, self.keys)
        self.view.on_change = self._notify
        self._notify_by = means_of(config.text("chat.notify"), config.environment)
        self._notify_after_s = config.number("chat.notify_after_s")
        self._hint = self._noticed = ""
        self._scrolled: list[str] = []
        self._app_ended = anyio.Event()
        self._changed = anyio.Event()
        self._group: TaskGroup | None = None
        self._ctrl_c_at = -10.0
        self._leave_at = -LEAVE_AGAIN_S
        self._line_begun_at = 0.0
        self._failed = 0
        self._says_how_to_go_on = keyboard is None
        self._parting = ""
        self._leaving = Leaving(config)
        self._draft = Draft(config.home)
        self._draft_is_old = False
        self._unsent: list[str] = []
        self._handing_over = 0
        self._handed_over = anyio.Event()
        self._pastes = Pastes()
        self.buffer = Buffer(
            completer=ChatCompleter(self.talk),
            complete_while_typing=True,
            multiline=True,
            history=KeptHistory(config.home / "history"),
            on_text_changed=lambda _: self._typed(),
        )
        escape_wait_s = config.number("chat.escape_wait_ms") / 1000
        self.app = Drawing(
            take_scrolled=self._take_scrolled,
            layout=self._layout(),
            key_bindings=bindings(self),
            input=keyboard or Keyboard(sys.stdin, escape_wait_s=escape_wait_s),
            before_render=lambda _: self._before_drawing(),
            output=_output(),
            erase_when_done=True,
            style=Style.from_dict(LINE_COLOURS if colour else {}),
            color_depth=None if colour else ColorDepth.DEPTH_1_BIT,
        )
        self.app.ttimeoutlen = escape_wait_s or SEQUENCE_REST_S
        self.app.timeoutlen = SEQUENCE_S
        self.app.reflows = reflows(config.environment)
        self.app.erased_counts = bool(config.environment.get("TMUX"))

    # What keys do

    def submit(self, mode: Mode) -> None:
        """Sends the line. Commands begin with a slash, the user's own shell commands with `!`."""
        line = self.buffer.text.strip()
        if not line:
            if self.talk.can_go_on:
                self.spawn(self.talk.continue_)
            return
        freely = mode is self.talk.enter_mode
        meant = self.talk.answer_meant(line, self._line_begun_at, freely=freely)
        text = self._pastes.unfold(line)
        draft = self._draft_below()
        self._remember(line, text)
        if meant is not None:
            self.buffer.reset()
            question, answer = meant[0], self._pastes.unfold(meant[1])
            self._hand_over(lambda: self._obey(self.talk.answer(question, answer)))
        elif (found := chat_command_of(line)) is not None or line.startswith("/"):
            command = f"/{found}" if found is not None else text
            self.buffer.reset()
            self.spawn(lambda: self._obey(run_command(self.talk, command)))
        elif line.startswith("!"):
            self.buffer.reset()
            self._keep_draft()
            self.spawn(lambda: self.talk.run_shell(text.removeprefix("!")))
        else:
            self._unsent.append(text)
            self.buffer.reset()
            self._hand_over(lambda: self._send(text, mode))
        if draft:
            self.put_back(draft)

    def _draft_below(self) -> str:
        """Returns what was being typed before an older line, which is sent now, was fetched."""
        lines = self.buffer._working_lines
        return lines[-1] if self.buffer.working_index < len(lines) - 1 else ""

    async def _obey(self, command: Coroutine[object, object, None]) -> None:
        """Runs a command; its words stay in the draft until it is done with them."""
        try:
            await command
        finally:
            self._keep_draft()

    def _hand_over(self, work: Work) -> None:
        """Starts work that gives words of the user to the session. Leaving waits for it."""

        async def counted() -> None:
            try:
                await work()
            finally:
                self._handing_over -= 1
                self._handed_over.set()

        self._handing_over += 1
        self.spawn(counted)

    async def _wait_for_words(self) -> None:
        """Waits until the session has the words that were sent. If it does not take them in time,
        they are in the line of the next start."""
        while self._handing_over and not self._parting:
            self._handed_over = anyio.Event()
            self._hint = f"sending your words; {self.keys['interrupt']} leaves at once"
            self.changed()
            await self._handed_over.wait()

    async def _send(self, text: str, mode: Mode) -> None:
        await self.talk.send(text, mode)
        self._unsent.remove(text)
        if not self.buffer.text and not self._unsent:
            self._pastes.texts.clear()
        self._keep_draft()

    def _remember(self, line: str, text: str) -> None:
        """Adds the line to the history with its pastes in full. Very long pastes are not kept: a
        placeholder alone would later stand for another paste."""
        if line == text:
            self.buffer.append_to_history()
        elif len(text) <= HISTORY_CHARACTERS_MAX:
            self.buffer.history.append_string(text)

    def ctrl_c(self) -> None:
        if self.left.is_set():
            self._leaving.at_once()
        elif self.buffer.text:
            self.buffer.reset()
            self._keep_draft()
        elif self.talk.busy and self.talk.stopping:
            self.talk.hurry()
        elif self.talk.busy:
            self.talk.stop()
        elif time.monotonic() - self._ctrl_c_at < AGAIN_S:
            self.leave()
        else:
            self._ctrl_c_at = time.monotonic()
            left = 0 if self.talk.goes_on else len(self.talk.activity.in_background)
            and_stops = f" and stops {left} in the background" if left else ""
            self._hint = f"{self.keys['interrupt']} again leaves{and_stops}"
            self.changed()

    def expand(self) -> None:
        """Shows all of the last call that has ended."""
        self.spawn(lambda: run_command(self.talk, "/output"))

    def paste(self, text: str) -> None:
        self.buffer.insert_text(mention_of(text) or self._pastes.fold(text))

    def pasted_before_cursor(self) -> str:
        return self._pastes.placeholder_before(self.buffer.document.text_before_cursor)

    def complete_next(self) -> None:
        self.buffer.complete_next()

    def edit(self) -> None:
        """Opens the line in the user's editor, with pastes in full."""
        self.buffer.text = self._pastes.unfold(self.buffer.text)
        self.buffer.open_in_editor()

    # A face

    def tell(self, style: str, words: str) -> None:
        self.view.note(style, words, kind="told")

    def show(self, event: Watched) -> None:
        if isinstance(event, TextDelta | ReasoningDelta | Recorded):
            self._forget_notice()
        self.view.show(event)

    def _notify(self, change: Change) -> None:
        """Has the terminal tell the user, who may be looking at another window."""
        words = worth_telling(change, self.talk.now(), self._notify_after_s)
        written = sequence(self._notify_by, words) if words else ""
        if written:
            self.app.output.write_raw(written)
            self.app.output.flush()

    def show_again(self, pieces: list[Piece]) -> None:
        self.view.forget()
        # Running calls are drawn at the bottom and scroll when they end.
        ended = [each for each in pieces if not isinstance(each, Called) or each.status is not None]
        self.view.replay(ended)

    def show_whole(self, call: ShownCall) -> None:
        self.view.show_whole(call)

    def notice(self, words: str) -> None:
        self._hint = self._noticed = words
        self.changed()

    def _forget_notice(self) -> None:
        """Removes a notice when what it announced has arrived or ended."""
        if self._hint == self._noticed:
            self._hint = ""

    def put_back(self, text: str) -> None:
        # A text too long to edit in the line becomes a placeholder.
        text = self._pastes.fold(text) if len(text) > HISTORY_CHARACTERS_MAX else text
        self.buffer.text = f"{text}\n{self.buffer.text}" if self.buffer.text else text
        self.buffer.cursor_position = len(self.buffer.text)

    can_draw = True
    can_ask = True

    def ask(self, question: Question) -> None:
        self.view.ask(question)
        self.changed()

    def pick(self, command: str) -> bool:
        if self.buffer.text:
            return False
        self.buffer.text = f"{command} "
        self.buffer.cursor_position = len(self.buffer.text)
        # The menu is a task of the drawing, which other tasks do not find by themselves.
        with set_app(self.app):
            self.buffer.start_completion()
        return True

    def leave(self) -> None:
        """Leave; but what runs on a server would go on, so the first time say that."""
        what = self.talk.config.text("chat.leave")
        if self.talk.goes_on and self.talk.busy and what == "stop":
            self.spawn(self._stop_and_leave)
            return
        asks = self.talk.goes_on and self.talk.busy and what == "ask"
        if asks and time.monotonic() - self._leave_at > LEAVE_AGAIN_S:
            self._leave_at = time.monotonic()
            self._hint = f"it goes on without you: again leaves, {self.keys['stop']} stops it"
            self.changed()
            return
        self.left.set()

    async def _stop_and_leave(self) -> None:
        try:
            await self.talk.opened()[1].interrupt()
        finally:
            self.left.set()

    def changed(self) -> None:
        self._changed.set()

    def spawn(self, work: Work) -> None:
        if self._group is not None:
            self._group.start_soon(self._guarded, work)

    # Running

    async def run(self) -> int:
        caller = loop_caller()
        self._measure()
        line, pastes = self._draft.kept()
        self._pastes = Pastes(pastes)
        self.buffer.text = line
        self.buffer.cursor_position = len(line)

        def interrupt(presses: int) -> None:
            if self.left.is_set():
                self._leaving.at_once()
            call_if_open(caller, self.ctrl_c)

        sending = anyio.move_on_after(math.inf)

        def leave(number: object) -> None:
            self._leaving.begin()
            call_if_open(caller, sending.cancel)
            call_if_open(caller, self.left.set)

        with (
            heard(on_interrupt=interrupt, on_leave=leave),
            tidied_before_death(self._leaving.restore),
        ):
            async with anyio.create_task_group() as group:
                self._group = group
                group.start_soon(self._run_app)
                group.start_soon(self._run_talk)
                group.start_soon(self._paint)
                await self.left.wait()
                with sending:
                    sending.deadline = anyio.current_time() + HAND_OVER_S
                    await self._wait_for_words()
                await self._close(group)
        self._leaving.over()
        session = self.talk.session
        if session is not None and self.talk.said and self._says_how_to_go_on:
            _say(f"{self.talk.come_back} goes on here (session {session.id})")
        return self._failed

    async def _close(self, group: TaskGroup) -> None:
        if self.app.is_running and not self.app.is_done:
            self.app.exit()
        await self._app_ended.wait()
        self._leaving.begin()
        if self._parting:
            # The engine is already closed.
            _say(f"bargein chat: {self._parting}")
        else:
            back = self.talk.come_back if self.talk.goes_on else ""
            self._leaving.tell(self.talk.running_in_words, come_back=back)
        self._group = None
        group.cancel_scope.cancel()

    async def _run_app(self) -> None:
        try:
            await self.app.run_async(handle_sigint=False)
        finally:
            self._app_ended.set()
            self.left.set()

    async def _run_talk(self) -> None:
        try:
            await self.talk.run()
        except BargeinError as error:
            self._failed = 2 if isinstance(error, UserError) else 1
            self._parting = explain_data_directory(str(error), self.talk.config.home)
            self._handed_over.set()
            self.left.set()

    async def _guarded(self, work: Work) -> None:
        try:
            await _awaited(work())
        except BargeinError as error:
            self._forget_notice()
            self.view.note("bad", str(error))

    # Drawing

    async def _paint(self) -> None:
        """Draws at a bounded rate, and only if something changed or spins."""
        while True:
            spins = self.talk.busy or self.talk.activity.children
            with anyio.move_on_after(SPIN_S if spins else None):
                await self._changed.wait()
            self._changed = anyio.Event()
            self._measure()
            self.view.shell = self.talk.shell.shown if self.talk.shell is not None else None
            self.app.invalidate()
            await anyio.sleep(FRAME_S)

    def _measure(self) -> None:
        size = self.app.output.get_size()
        self.view.width, self.view.height = size.columns, size.rows

    def _typed(self) -> None:
        if len(self.buffer.text) <= 1:
            self._line_begun_at = time.monotonic()
        self._hint = ""
        self._draft_is_old = True

    def _before_drawing(self) -> None:
        """Saves the draft once per frame, because many keys may arrive at once and a file write
        takes time. Measures the window, so that the next text is laid out for it."""
        self._measure()
        if self._draft_is_old:
            self._keep_draft()

    def _keep_draft(self) -> None:
        self._draft_is_old = False
        lines = [*self._unsent, self.buffer.text] if self.buffer.text else self._unsent
        self._draft.keep("\n".join(lines), self._pastes.texts)

    def _scroll(self, text: str) -> None:
        self._scrolled.append(self._painter.symbols.fit(text))
        self.changed()

    def _take_scrolled(self) -> str:
        text, self._scrolled = "".join(self._scrolled), []
        return text

    def _layout(self) -> Layout:
        bottom = FormattedTextControl(lambda: ANSI("\n".join(self._bottom())))
        prompt = Window(
            FormattedTextControl([("class:prompt", "> ")]), width=2, dont_extend_width=True
        )
        searched = SearchBufferControl(
            input_processors=[BeforeInput("search back: ", "class:dim")], ignore_case=True
        )
        line = Window(
            BufferControl(self.buffer, search_buffer_control=searched, preview_search=True),
            height=Dimension(min=1, max=INPUT_LINES_MAX),
            dont_extend_height=True,
            wrap_lines=True,
        )
        menu = ConditionalContainer(CompletionsMenu(max_height=8), has_completions)
        open_rows = Window(bottom, dont_extend_height=True, wrap_lines=False)
        rows = [
            ConditionalContainer(open_rows, Condition(lambda: bool(self._bottom()))),
            Window(height=1),
            VSplit([prompt, line]),
            menu,
            ConditionalContainer(Window(searched, height=1), is_searching),
            Window(FormattedTextControl(self._status), height=1),
        ]
        return Layout(HSplit(rows), focused_element=line)

    def _bottom(self) -> list[str]:
        lines = self.view.bottom(self.talk.state, self.app.output.get_size().rows)
        return [self._painter.symbols.fit(line) for line in lines]

    def _status(self) -> StyleAndTextTuples:
        hint = self._hint
        if self.app.layout.is_searching:
            hint = f"{self.keys['send']} takes it · {self.keys['interrupt']} leaves it"
        if self.buffer.complete_state is not None and pick_of(self.buffer.text) is not None:
            hint = f"Up and Down choose · type to search · {self.keys['send']} takes it"
        meant = self.talk.answer_meant(self.buffer.text, self._line_begun_at)
        if meant is not None:
            hint = f"{self.keys['send']} answers: {' '.join(meant[1].split())}"
        return status(self.talk, self._painter, hint, self.app.output.get_size().columns)


async def _awaited(work: Coroutine[object, object, None]) -> None:
    await work


def _say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)


def _output() -> Vt100_Output:
    # Asking the terminal for its cursor takes a round trip, which is felt over a slow line.
    output = ScreenOutput.from_pty(sys.stdout)
    output.enable_cpr = False
    return output
