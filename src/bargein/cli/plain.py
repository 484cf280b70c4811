"""`bargein chat --plain`: a chat line by line, for screen readers, dumb terminals and pipes.

Nothing is drawn, moved or coloured: everything is written once, in words, and stays. Input typed
during an answer joins it, or does what `chat.enter` says. All commands of the drawing terminal
work. Ctrl-C stops what runs, and leaves if nothing runs; the end of the input leaves too. The
answer goes to standard output, everything else to standard error.
"""

import sys
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from threading import Semaphore
from typing import TextIO

import anyio
from anyio.abc import TaskGroup

from bargein.cancel import start_thread
from bargein.cancel._loops import call_if_open, loop_caller
from bargein.cli.chat.before import (
    Answered,
    Called,
    Noted,
    Piece,
    UserSpoke,
    background_over,
    budget_in_words,
    call_over,
    heard_in_words,
    outcome_in_words,
)
from bargein.cli.chat.commands import run_command
from bargein.cli.chat.edits import edit_lines, whole_result
from bargein.cli.chat.notifying import means_of, sequence, worth_telling
from bargein.cli.chat.paint import harmless, symbols_for
from bargein.cli.chat.talk import COME_BACK, Talk, Work
from bargein.cli.event_loop import run_in_loop
from bargein.cli.joining import OpenEngine, hosted_engine
from bargein.cli.leaving import Leaving
from bargein.cli.receipts import in_words
from bargein.cli.run import NOBODY, Notices
from bargein.cli.signals import heard
from bargein.contracts.chat_commands import chat_command_of
from bargein.contracts.message import Mode
from bargein.contracts.tool import Question
from bargein.errors import BargeinError, UserError
from bargein.runtime.config import Config
from bargein.runtime.data_directory import explain_data_directory
from bargein.session.broadcast import Watched
from bargein.session.limits import Limits
from bargein.tools.todo import NAME as TODO
from bargein.tools.todo import todo_of
from bargein.view import (
    AnswerCutShort,
    AnswerVoided,
    BackgroundClosed,
    BudgetWarned,
    CallClosed,
    CallMoved,
    CallOpened,
    CallResulted,
    Change,
    ChildClosed,
    ChildOpened,
    MessageTaken,
    QuestionOpened,
    ShownCall,
    ShownTurn,
    StepOpened,
    TurnClosed,
    TurnStopping,
    WordsAdded,
)

READ_AHEAD_LINES = 1000
LINE_CHARACTERS_MAX = Limits().message_bytes_max + 1


def main(
    config: Config,
    *,
    resume: str | None = None,
    go_on: bool = False,
    any_folder: bool = False,
    share: bool = False,
    come_back: str = COME_BACK,
    open_engine: OpenEngine = hosted_engine,
) -> int:
    chat = PlainChat(
        config,
        resume=resume,
        go_on=go_on,
        any_folder=any_folder,
        share=share,
        come_back=come_back,
        open_engine=open_engine,
    )
    return run_in_loop(chat.run)


class PlainChat:
    """A `Face` that writes lines. The terminal itself collects input, so the keys are fixed."""

    keys: Mapping[str, str] = {"send": "Enter", "stop": "Ctrl-C"}

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
    ) -> None:
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
        self._left = anyio.Event()
        self._group: TaskGroup | None = None
        self._leaving = Leaving(config)
        self._notices = Notices(self._say)
        self._symbols = symbols_for(sys.stderr.encoding or "ascii", config.environment)
        self._mid_line = False
        self._input_ended = False
        self._failed = 0

    async def run(self) -> int:
        caller = loop_caller()

        def interrupt(presses: int) -> None:
            if self._left.is_set():
                self._leaving.at_once()
            call_if_open(caller, self._ctrl_c)

        def leave(number: object) -> None:
            self._leaving.begin()
            call_if_open(caller, self._left.set)

        with heard(on_interrupt=interrupt, on_leave=leave):
            async with anyio.create_task_group() as group:
                self._group = group
                group.start_soon(self._run_talk)
                group.start_soon(self._read)
                await self._left.wait()
                self._leaving.begin()
                if not self._failed:
                    # On a failure the engine is already closed.
                    back = self.talk.come_back if self.talk.goes_on else ""
                    self._leaving.tell(self.talk.running_in_words, come_back=back)
                self._group = None
                group.cancel_scope.cancel()
        self._leaving.over()
        return self._failed

    async def _run_talk(self) -> None:
        try:
            await self.talk.run()
        except BargeinError as error:
            self._say(f"bargein chat: {explain_data_directory(str(error), self.talk.config.home)}")
            self._failed = 2 if isinstance(error, UserError) else 1
            self._left.set()

    async def _read(self) -> None:
        lines = _read_lines()
        await self.talk.ready.wait()
        while True:
            line = await lines.get()
            if line is None:
                await self._settle()
                break
            await self._guarded(partial(self._obey, line.strip()))
        self._left.set()

    async def _settle(self) -> None:
        """Handles the end of the input: waits for answers of the model, and leaves its questions
        unanswered, because nobody can answer them."""
        self._input_ended = True
        for question_id in list(self.talk.activity.questions):
            await self._guarded(partial(self._leave_unanswered, question_id))
        await self.talk.opened()[1].settled()

    async def _leave_unanswered(self, question_id: str) -> None:
        self._say("(nobody is there to answer)")
        await self.talk.answer(question_id, NOBODY)

    async def _obey(self, line: str) -> None:
        command = chat_command_of(line)
        if command is not None or line.startswith("/"):
            await run_command(self.talk, f"/{command}" if command is not None else line)
        elif line.startswith("!"):
            self.spawn(lambda: self.talk.run_shell(line.removeprefix("!")))
        elif line:
            await self._send(line)
        elif self.talk.can_go_on:
            await self.talk.continue_()

    async def _send(self, line: str) -> None:
        mode = self.talk.enter_mode
        busy = self.talk.state is not None and self.talk.state.busy
        await self.talk.send(line, mode)
        if busy:
            said = {Mode.STEER: "joins what runs", Mode.QUEUE: "waits for its own turn"}
            self._say(f"({said.get(mode, 'stops what runs')})")

    def _ctrl_c(self) -> None:
        if not self.talk.busy:
            self._left.set()
        elif self.talk.stopping:
            self.talk.hurry()
        else:
            self.talk.stop()

    # A face

    def tell(self, style: str, words: str) -> None:
        self._say(words)

    def notice(self, words: str) -> None:
        self._notices(words)

    def show_whole(self, call: ShownCall) -> None:
        changed = "\n".join(line for _, line in edit_lines(call))
        self._say(f"{harmless(str(call))}\n{changed or whole_result(call)}")

    def put_back(self, text: str) -> None:
        self._say(f"not taken: {text}")

    def leave(self) -> None:
        self._left.set()

    can_draw = False
    can_ask = False
    """No line is read before a session is open, and none while a command runs."""

    def ask(self, question: Question) -> None:
        self._ask(question)

    def pick(self, command: str) -> bool:
        return False

    def changed(self) -> None:
        """Does nothing: written lines stay as they are."""

    def spawn(self, work: Work) -> None:
        if self._group is not None:
            self._group.start_soon(self._guarded, work)

    async def _guarded(self, work: Work) -> None:
        try:
            await work()
        except BargeinError as error:
            self._say(str(error))

    def show_again(self, pieces: list[Piece]) -> None:
        for piece in pieces:
            match piece:
                case UserSpoke(words=words, sender=sender):
                    author = self.talk.activity.author_of(sender) or "you"
                    self._say(f"{author} said: {harmless(words)}")
                case Answered(words=words):
                    self._say(f"it said: {harmless(words)}")
                case Called(status=status, summary=summary):
                    outcome = outcome_in_words(piece.title, status or "not ended", summary)
                    self._say(harmless(f"[{piece}: {outcome}]"))
                case Noted(words=words):
                    self._say(harmless(words))

    def show(self, event: Watched) -> None:
        for change in self.talk.activity.see(event):
            self._show(change)
            self._notify(change)

    def _notify(self, change: Change) -> None:
        config = self.talk.config
        words = worth_telling(change, self.talk.now(), config.number("chat.notify_after_s"))
        if words and sys.stdout.isatty():
            means = means_of(config.text("chat.notify"), config.environment)
            print(sequence(means, words), end="", flush=True)

    def _show(self, change: Change) -> None:
        match change:
            case WordsAdded(text=text, late=False):
                self._write(harmless(text))
                self._mid_line = not text.endswith("\n") if text else self._mid_line
            case WordsAdded(text=text):
                self._end_line()
                self._write(harmless(text).rstrip("\n") + "\n")
            case AnswerVoided(cause=cause, delay_s=delay_s, model=model):
                self._say(f"asking {model} again in {delay_s:.1f} s: {cause}")
            case StepOpened():
                self._end_line()
            case MessageTaken(message=message) if not message.is_news:
                # This terminal's user has just typed their own messages.
                if author := self.talk.activity.author_of(message.message.sender):
                    self._say(f"{author} says: {harmless(message.text)}")
            case QuestionOpened(question=asked):
                self._ask(asked.question)
                if self._input_ended:
                    self.spawn(partial(self._leave_unanswered, asked.id))
            case TurnStopping():
                self._say("stopping ...")
            case TurnClosed(turn=turn):
                self._show_settled(turn)
            case _:
                self._show_work(change)

    def _show_work(self, change: Change) -> None:
        match change:
            case CallOpened(call=call):
                self._say(f"[{call} ...]")
            case CallClosed(call=call):
                self._say(f"[{harmless(call_over(call))}]")
            case CallMoved(call=call):
                self._say(f"[{harmless(str(call))} goes on in the background as {call.id}]")
            case BackgroundClosed(call=call):
                self._say(f"[{harmless(background_over(call))}]")
            case CallResulted(call=call) if call.name == TODO:
                for item in todo_of(call.arguments):
                    self._say(harmless(f"[{item.state}] {item.text}"))
            case BudgetWarned(low=low):
                self._say(f"[{budget_in_words(low)}]")
            case AnswerCutShort(turn=turn):
                self._say(f"[{harmless(heard_in_words(turn))}]")
            case ChildOpened(child=child):
                self._say(f"[sub-agent: {harmless(child.task)} ...]")
            case ChildClosed(child=child):
                self._say(f"[sub-agent {child.outcome}: {harmless(child.summary)}]")
            case _:
                pass

    def _show_settled(self, turn: ShownTurn) -> None:
        self._end_line()
        if turn.receipt is not None:
            self._say(harmless(in_words(turn.receipt)))
        elif turn.error:
            self._say(harmless(self.talk.activity.failed_in_words(turn.error)))
            if self.talk.activity.unanswered:
                self._say("an empty line or /retry asks again")
        if self.talk.state is not None and self.talk.state.held:
            self._say("what waits is held: an empty line continues with it")

    def _ask(self, question: Question) -> None:
        self._say(f"question: {harmless(question.text)}")
        if question.detail:
            self._say(harmless(question.detail))
        choices = " or ".join(question.choices)
        if not self._input_ended:
            self._say(f"answer with /answer {choices or 'WORDS'}")

    def _end_line(self) -> None:
        if self._mid_line:
            self._mid_line = False
            self._write("\n")

    def _write(self, text: str) -> None:
        try:
            print(text, end="", flush=True)
        except OSError:
            # Nobody reads the answers any more; the exit code says so.
            self._left.set()

    def _say(self, words: str) -> None:
        self._end_line()
        with suppress(OSError):
            print(self._symbols.fit(harmless(words)), file=sys.stderr, flush=True)


class _Lines:
    """Lines of standard input, read by a thread that may be abandoned. It reads only a bounded
    number of lines ahead, because there may be no end to them."""

    def __init__(self) -> None:
        self._lines: deque[str | None] = deque()
        self._more = anyio.Event()
        self.room = Semaphore(READ_AHEAD_LINES)

    def put(self, line: str | None) -> None:
        self._lines.append(line)
        self._more.set()

    async def get(self) -> str | None:
        while not self._lines:
            self._more = anyio.Event()
            await self._more.wait()
        self.room.release()
        return self._lines.popleft()


def _read_lines() -> _Lines:
    lines = _Lines()
    caller = loop_caller()
    source = sys.stdin

    def read() -> None:
        while line := _read_line(source):
            lines.room.acquire()
            call_if_open(caller, partial(lines.put, line.rstrip("\n")))
        call_if_open(caller, partial(lines.put, None))

    start_thread(read)
    return lines


def _read_line(source: TextIO) -> str:
    """Returns the next line. A line too long for any session is cut, but still long enough to be
    refused."""
    line = read = source.readline(LINE_CHARACTERS_MAX)
    while len(read) == LINE_CHARACTERS_MAX and not read.endswith("\n"):
        read = source.readline(LINE_CHARACTERS_MAX)
    return line
