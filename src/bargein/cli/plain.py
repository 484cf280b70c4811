"""`bargein chat --plain`: talk line by line, for screen readers, dumb terminals and pipes.

What is typed while an answer comes joins it (`/queue` and `/redirect` say otherwise). Ctrl-C stops
the answer, and with nothing running leaves; so does the end of the input.
"""

import sys
from collections.abc import Callable
from contextlib import aclosing, suppress
from functools import partial
from importlib.util import find_spec
from secrets import token_hex

import anyio

from bargein.cancel import Cause, Reason, arm_quit_watchdog, disarm_quit_watchdog, start_thread
from bargein.cancel._loops import call_if_open, loop_caller
from bargein.cli.config import Config
from bargein.cli.receipts import in_words
from bargein.cli.run import Notices
from bargein.cli.signals import heard
from bargein.cli.wiring import Engine, default_agent
from bargein.contracts.event import QuestionAsked, Recorded, TurnSettled
from bargein.contracts.live import AnswerVoid, StepBegan, StepOver, Stopping, TextDelta
from bargein.contracts.message import Mode
from bargein.contracts.receipt import StepKind
from bargein.errors import BargeinError
from bargein.session.broadcast import Watched
from bargein.session.session import Session

LEAVE_S = 5.0
HELP = """\
  words             say them; while an answer comes they join it
  /redirect WORDS   stop the answer and say this instead
  /queue WORDS      a turn of its own, later
  /stop             stop the answer          /continue   let go of what is held
  /inbox            what waits               /drop ID    take a message back
  /answer ID WORDS  answer a question        /exit       leave"""


def main(session_name: str | None, config: Config) -> int:
    options = {"use_uvloop": find_spec("uvloop") is not None}
    return anyio.run(_chat, session_name or f"chat-{token_hex(4)}", config, backend_options=options)


async def _chat(session_id: str, config: Config) -> int:
    _say("starting ...")
    async with Engine(default_agent(config), config=config, on_notice=Notices()) as engine:
        session = await engine.session(session_id)
        lines = _read_lines()
        left = anyio.Event()
        caller = loop_caller()

        def interrupt(presses: int) -> None:
            landing = engine.land(session_id, Reason(Cause.USER_STOP, "user"))
            if landing is None or landing.turn is None:
                call_if_open(caller, left.set)

        def leave(number: object) -> None:
            arm_quit_watchdog(LEAVE_S)
            call_if_open(caller, left.set)

        with heard(on_interrupt=interrupt, on_leave=leave):
            async with anyio.create_task_group() as group:
                group.start_soon(_show, session)
                group.start_soon(_talk, session, lines, left.set)
                _say(f"session {session_id}, model {engine.model_name}; /help for help")
                await left.wait()
                group.cancel_scope.cancel()
        _say("shutting down")
        arm_quit_watchdog(LEAVE_S)
    disarm_quit_watchdog()
    return 0


class _Lines:
    """Lines of standard input, read by a thread that nobody waits for."""

    def __init__(self) -> None:
        self._lines: list[str | None] = []
        self._more = anyio.Event()

    def put(self, line: str | None) -> None:
        self._lines.append(line)
        self._more.set()

    async def get(self) -> str | None:
        while not self._lines:
            self._more = anyio.Event()
            await self._more.wait()
        return self._lines.pop(0)


def _read_lines() -> _Lines:
    lines = _Lines()
    caller = loop_caller()

    def read() -> None:
        for line in sys.stdin:
            call_if_open(caller, partial(lines.put, line.rstrip("\n")))
        call_if_open(caller, partial(lines.put, None))

    start_thread(read)
    return lines


async def _talk(session: Session, lines: _Lines, leave: Callable[[], object]) -> None:
    while True:
        line = await lines.get()
        if line is None:
            # The input has ended: what was asked is still answered.
            await session.settled()
            break
        if line.strip() == "/exit":
            break
        if line.strip():
            try:
                await _obey(session, line.strip())
            except BargeinError as error:
                _say(str(error))
    leave()


async def _obey(session: Session, line: str) -> None:
    command, _, rest = line.partition(" ")
    if command == "/help":
        _say(HELP)
    elif command == "/stop":
        receipt = await session.interrupt()
        if receipt.status == "too_late":
            _say("nothing is running")
    elif command == "/continue":
        await session.continue_()
    elif command == "/inbox":
        for item in await session.inbox():
            _say(f"  {item.message.id} ({item.lane}): {item.message.text}")
    elif command == "/drop":
        await session.withdraw(rest.strip())
    elif command == "/answer":
        question, _, words = rest.partition(" ")
        await session.answer(question, words)
    elif command in ("/redirect", "/queue"):
        mode = Mode.INTERRUPT if command == "/redirect" else Mode.QUEUE
        sent = await session.send(rest, mode=mode)
        _say(f"({sent.message}: {sent.disposition})")
    elif command.startswith("/"):
        _say(f"no such command: {command}; /help lists them")
    else:
        sent = await session.send(line)
        if sent.disposition != "started":
            _say(f"({sent.message}: {sent.disposition})")


async def _show(session: Session) -> None:
    async with aclosing(session.watch()) as events:
        async for event in events:
            _show_one(event)


def _show_one(event: Watched) -> None:
    with suppress(BrokenPipeError):
        if isinstance(event, TextDelta):
            print(event.text, end="", flush=True)
        elif isinstance(event, AnswerVoid):
            _say(f"asking {event.model} again in {event.delay_s:.1f} s: {event.cause}")
        elif isinstance(event, Stopping):
            _say("stopping ...")
        elif isinstance(event, StepBegan) and event.kind == StepKind.TOOL:
            _say(f"[{event.name} ...]")
        elif isinstance(event, StepOver) and event.kind == StepKind.TOOL:
            _say(f"[{event.name}: {event.summary or event.status}]")
        elif isinstance(event, Recorded):
            _show_recorded(event)


def _show_recorded(recorded: Recorded) -> None:
    event = recorded.event
    if isinstance(event, TurnSettled):
        print(flush=True)
        if event.receipt is not None:
            _say(in_words(event.receipt))
        elif event.error:
            _say(f"failed: {event.error}")
    elif isinstance(event, QuestionAsked):
        choices = f" ({' or '.join(event.question.choices)})" if event.question.choices else ""
        _say(f"? {event.question.text}{choices}  -> /answer {event.id} ...")


def _say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)
