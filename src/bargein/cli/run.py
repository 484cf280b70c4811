"""`bargein run`: one turn, for scripts, pipes and people in a hurry.

The answer goes to stdout as it comes, everything else to stderr. With `--output-schema` stdout gets
the JSON of the final answer on one line, or nothing. Exit codes: 0 answered, 1 failed or ended by a
budget, 2 wrong usage, 124 out of time, 130 stopped by Ctrl-C, 141 the reader of stdout has gone.
"""

import argparse
import math
import sys
import time
from collections.abc import Callable
from contextlib import aclosing, suppress
from pathlib import Path
from secrets import token_hex

import anyio
import msgspec
from anyio.abc import TaskStatus

from bargein.cancel import Cause, arm_quit_watchdog, disarm_quit_watchdog
from bargein.cli.chat.before import background_over, call_over
from bargein.cli.chat.paint import Symbols, harmless, symbols_for
from bargein.cli.default_agent import describe_found_model
from bargein.cli.event_loop import run_in_loop
from bargein.cli.granted import obey_mode_flag
from bargein.cli.joining import engine_of_owner, note_place
from bargein.cli.piped import message_of
from bargein.cli.receipts import in_words
from bargein.cli.signals import heard
from bargein.cli.streams import NOBODY_READS, write_whole
from bargein.contracts.event import QuestionAsked, Recorded, TurnOutcome
from bargein.contracts.json_schema import SchemaUnfit
from bargein.contracts.output import SCHEMA_BYTES_MAX, Output, make_output
from bargein.contracts.receipt import Scope
from bargein.contracts.tool import Approval
from bargein.errors import BargeinError, UserError
from bargein.runtime.config import Config
from bargein.session.any_session import AnySession
from bargein.session.broadcast import Watched
from bargein.session.results import TurnResult
from bargein.session.session import Sent, Session, TooLate, TurnFailed
from bargein.view import (
    AnswerVoided,
    BackgroundClosed,
    CallClosed,
    CallMoved,
    CallOpened,
    Change,
    Picture,
    StepOpened,
    WordsAdded,
)

OUT_OF_TIME = 124
STOPPED = 130
LEAVE_S = 5.0
HURRY_S = 1.0
NOBODY = "nobody is there to ask"


def main(given: argparse.Namespace, config: Config) -> int:
    output = None if given.output_schema is None else read_output(given.output_schema)
    return run_in_loop(_run, message_of(given.prompt), output, given, config)


def read_output(file: str) -> Output:
    """Reads the schema of the answer. Raises `UserError` if the file is not a schema, or has
    keywords that are not checked."""
    try:
        with Path(file).open("rb") as opened:
            text = opened.read(SCHEMA_BYTES_MAX + 1)
        if len(text) > SCHEMA_BYTES_MAX:
            raise SchemaUnfit(f"it has more than {SCHEMA_BYTES_MAX} bytes; give a smaller schema")
        schema = msgspec.json.decode(text)
        return make_output(schema, name=_title_of(schema))
    except (OSError, ValueError, RecursionError, SchemaUnfit) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"--output-schema {file}: {why}") from None


def _title_of(schema: object) -> str:
    title = schema.get("title") if isinstance(schema, dict) else None
    return title[:64] if isinstance(title, str) and title else "answer"


async def _run(
    prompt: str, output: Output | None, given: argparse.Namespace, config: Config
) -> int:
    session_id = given.session or f"run-{token_hex(6)}"
    out_of_time = anyio.Event()
    unread = anyio.Event()
    stops: list[Cause] = []
    answer = PrintedAnswer(shows_words=output is None)
    shown = ShownUpTo()
    async with engine_of_owner(config, Notices()) as engine:
        session = await engine.session(session_id)
        await note_place(engine, session, config)
        await obey_mode_flag(config, session)
        if config.models.model is None and engine.model_name == "local":
            # Say why this model was chosen, in case the user has set up another.
            _say("\n".join(describe_found_model(engine.model_name, engine.model_why)))

        def stop(cause: Cause) -> None:
            stops.append(cause)
            _stop(session, cause, _why(cause, given))

        def interrupt(presses: int) -> None:
            stop(Cause.USER_STOP)
            if presses > 1:
                arm_quit_watchdog(HURRY_S)

        with heard(on_interrupt=interrupt, on_leave=lambda number: stop(Cause.SHUTDOWN)):
            async with anyio.create_task_group() as group:
                await group.start(_show, session, given, answer, shown, unread, stop)
                if given.timeout is not None:
                    group.start_soon(_time_out, given.timeout, out_of_time, stop)
                sent = await session.send(prompt, output=output)
                if stops:
                    # The stop may have come before there was a turn to stop.
                    stop(stops[0])
                ended = await _end_of(sent)
                left = await _end_background(session)
                await _until_shown(session, shown)
                group.cancel_scope.cancel()
        arm_quit_watchdog(LEAVE_S)
        try:
            # Messages on stderr while the engine ends must not continue the answer's last line.
            answer.end_line()
            if output is not None and not given.json and isinstance(ended, TurnResult):
                _print_json(ended)
        except OSError:
            unread.set()
        if left and not given.json:
            _say(f"still in the background, and ended with this run: {left}")
    disarm_quit_watchdog()
    if unread.is_set():
        return NOBODY_READS
    if isinstance(ended, TurnFailed):
        raise ended
    symbols = symbols_for(sys.stderr.encoding or "ascii", config.environment)
    return _tell(ended, given, out_of_time.is_set(), symbols)


def _stop(session: AnySession, cause: Cause, why: str) -> None:
    """Over the wire a stop is the user's, and the exit code says the rest."""
    if isinstance(session, Session):
        session.interrupt_now(by=why, cause=cause)
    else:
        session.interrupt_now()


def _why(cause: Cause, given: argparse.Namespace) -> str:
    """Returns the reason of the stop, for the receipt and for the model."""
    return f"out of time: {given.timeout:g} s" if cause is Cause.DEADLINE else "bargein run"


async def _end_of(sent: Sent) -> TurnResult | TurnFailed:
    """Waits for the result. Returns a failure as a value, because the task group would wrap an
    error that is raised."""
    try:
        return await sent.result()
    except TurnFailed as error:
        return error


async def _end_background(session: AnySession) -> str:
    """Ends what the turn left in the background, because the run is for one turn. Returns what it
    was, in words."""
    state = await session.state()
    if not state.background and not state.children:
        return ""
    receipt = await session.interrupt(scope=Scope.SESSION)
    await session.settled()
    return ", ".join(step.summary or step.name for step in receipt.steps)


async def _until_shown(session: AnySession, shown: "ShownUpTo") -> None:
    """Waits until everything that has happened is shown. The result of a turn can be known before
    its last words have come: they go another way, and a slow one if the session is elsewhere."""
    with suppress(BargeinError):
        await shown.reached(await session.position())


def _print_json(result: TurnResult) -> None:
    if result.outcome is TurnOutcome.COMPLETED:
        line = msgspec.json.format(result.text, indent=-1)
        print(harmless(line) if sys.stdout.isatty() else line, flush=True)


def _tell(
    result: TurnResult, given: argparse.Namespace, out_of_time: bool, symbols: Symbols
) -> int:
    if given.json:
        return _exit_code(result, out_of_time)
    if result.receipt is not None:
        _say(symbols.fit(in_words(result.receipt)))
    elif out_of_time:
        _say(_why(Cause.DEADLINE, given))
    return _exit_code(result, out_of_time)


def _exit_code(result: TurnResult, out_of_time: bool) -> int:
    if result.outcome is TurnOutcome.COMPLETED:
        return 0
    reason = result.receipt.reason if result.receipt is not None else None
    cause = reason.root.cause if reason is not None else None
    if out_of_time or cause is Cause.DEADLINE:
        return OUT_OF_TIME
    if result.outcome is not TurnOutcome.STOPPED or cause is Cause.BUDGET:
        return 1
    return STOPPED


async def _time_out(
    seconds: float, out_of_time: anyio.Event, stop: Callable[[Cause], None]
) -> None:
    await anyio.sleep(seconds)
    out_of_time.set()
    stop(Cause.DEADLINE)


async def _show(
    session: AnySession,
    given: argparse.Namespace,
    answer: "PrintedAnswer",
    shown: "ShownUpTo",
    unread: anyio.Event,
    stop: Callable[[Cause], None],
    *,
    task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
) -> None:
    """Writes the answer as it comes. Stops the turn if the reader of stdout has gone."""
    async with aclosing(session.watch()) as events:
        task_status.started()
        async for event in events:
            try:
                if given.json:
                    write_whole(f"{msgspec.json.encode(event).decode()}\n")
                else:
                    answer.show(event)
            except OSError:
                unread.set()
                shown.end()
                stop(Cause.CLIENT_GONE)
                return
            if isinstance(event, Recorded):
                if isinstance(event.event, QuestionAsked):
                    reply = Approval.ALLOW if given.yes else NOBODY
                    with suppress(TooLate):
                        await session.answer(event.event.id, reply)
                shown.move(event.seq)
        shown.end()


class ShownUpTo:
    """The number of the last event of the log that was shown."""

    def __init__(self) -> None:
        self._seq: float = 0
        self._moved = anyio.Event()

    def move(self, seq: float) -> None:
        self._seq = seq
        self._moved.set()

    def end(self) -> None:
        """No more are shown, so nobody waits for them."""
        self.move(math.inf)

    async def reached(self, seq: int) -> None:
        while self._seq < seq:
            self._moved = anyio.Event()
            await self._moved.wait()


class PrintedAnswer:
    """Writes the answer to stdout as it comes. The words of each step, and the messages to stderr
    in between, begin on new lines, because both may go to the same terminal. Without `shows_words`
    it writes only the messages."""

    def __init__(self, *, shows_words: bool = True) -> None:
        self._shows_words = shows_words
        self._mid_line = False
        self._picture = Picture(turns_max=1)
        # A file or a program gets the words as they are; a terminal would obey control characters.
        self._shown = harmless if sys.stdout.isatty() else str

    def show(self, event: Watched) -> None:
        for change in self._picture.apply(event):
            self._show(change)

    def _show(self, change: Change) -> None:
        match change:
            case WordsAdded() if not self._shows_words:
                pass
            case WordsAdded(text=text, late=late):
                if late:
                    self.end_line()
                print(self._shown(text), end="", flush=True)
                self._mid_line = not text.endswith("\n") if text else self._mid_line
            case AnswerVoided(cause=cause, delay_s=delay_s, model=model):
                self._say(f"asking {model} again in {delay_s:.1f} s: {cause}")
            case StepOpened():
                self.end_line()
            case CallOpened(call=call):
                self._say(f"{call} ...")
            case CallClosed(call=call):
                self._say(call_over(call))
            case CallMoved(call=call):
                self._say(f"{call} goes on in the background as {call.id}")
            case BackgroundClosed(call=call):
                self._say(background_over(call))
            case _:
                pass

    def _say(self, words: str) -> None:
        self.end_line()
        _say(words)

    def end_line(self) -> None:
        if self._mid_line:
            self._mid_line = False
            print(flush=True)


class Notices:
    """Shows the progress of long work, at most once a second, on stderr or with `say`."""

    def __init__(self, say: Callable[[str], object] | None = None) -> None:
        self._say = say or _say
        self._told_at = -1.0

    def __call__(self, words: str) -> None:
        now = time.monotonic()
        if now - self._told_at >= 1.0:
            self._told_at = now
            self._say(words)


class Milestones:
    """Shows long work in a log, where each line stays: only the beginning of each kind."""

    def __init__(self, say: Callable[[str], object]) -> None:
        self._say = say
        self._last = ""

    def __call__(self, words: str) -> None:
        # Each kind of progress has its own first word.
        kind = words.partition(" ")[0]
        if kind != self._last:
            self._last = kind
            self._say(words)


def _say(words: str) -> None:
    print(harmless(words), file=sys.stderr, flush=True)
