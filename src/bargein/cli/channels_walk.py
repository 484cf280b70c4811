"""`bargein channels test NAME --walk`: one person and a real bot, through what matters, in five
minutes.

It runs the adapter of the channel with a scripted model and nothing on disk: no key, no cost, no
session of the operator's. Each step says what to do, waits until the session's log has it, and says
what it saw. So it must be the bot's only reader: it refuses while a server runs here.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TextIO

import anyio

from bargein.channels.access import ChannelAccess
from bargein.channels.contract import Channel, ChatKind
from bargein.channels.hub import ChannelHub
from bargein.channels.rows import Ledger, MemoryRows, Row
from bargein.contracts.event import (
    AssistantSaid,
    MessageAccepted,
    MessageEdited,
    MessagesTaken,
    QuestionClosed,
    Recorded,
    TurnOutcome,
    TurnSettled,
    TurnStarted,
)
from bargein.models.script import Answer, Call, Say, Script
from bargein.models.scripted import ScriptedModel
from bargein.session.agent import LoopSettings, loop_agent
from bargein.session.broadcast import Watched
from bargein.session.engine import SessionEngine
from bargein.stores.memory import MemoryStore
from bargein.tools import ToolRegistry
from bargein.tools.ask import ask_tool

STEP_S = 120.0
COUNT = " ".join(f"{number}," for number in range(1, 1001))
SCRIPT = [
    Answer([Say(COUNT, pace_s=0.5)], when="(?im)^count"),
    Answer([Call("ask", {"question": "Tea?", "choices": ["yes", "no"]})], when="(?im)^ask"),
    Answer([Say("Noted.")], when="(?im)^ask"),
    Answer([Say("This is the **answer** to what you said.")]),
]


@dataclass
class Seen:
    """What all sessions of the walk have logged, and a bell for more."""

    events: list[Any] = field(default_factory=list)
    more: anyio.Event = field(default_factory=anyio.Event)

    def note(self, session: str, event: Watched) -> None:
        if isinstance(event, Recorded):
            self.events.append(event.event)
            self.ring()

    def ring(self) -> None:
        self.more.set()
        self.more = anyio.Event()

    def of(self, kind: type[Any], after: int) -> list[Any]:
        return [each for each in self.events[after:] if isinstance(each, kind)]


Found = Callable[[Seen, int], str]
"""What a step has seen since the event of that number; empty if it is not there yet."""


@dataclass(frozen=True)
class WalkStep:
    name: str
    ask: str
    found: Found


def _answered(seen: Seen, after: int) -> str:
    settled = seen.of(TurnSettled, after)
    return "answered" if any(each.outcome is TurnOutcome.COMPLETED for each in settled) else ""


def _stopped(seen: Seen, after: int) -> str:
    for settled in seen.of(TurnSettled, after):
        if settled.outcome is TurnOutcome.STOPPED and settled.receipt is not None:
            return f"stopped, settled in {settled.receipt.elapsed_ms:.0f} ms"
    return ""


def _one_turn(seen: Seen, after: int) -> str:
    accepted = len(seen.of(MessageAccepted, after))
    if accepted < 3 or not _answered(seen, after):
        return ""
    turns = len(seen.of(TurnStarted, after))
    joined = sum(len(each.messages) for each in seen.of(MessagesTaken, after))
    return f"{accepted} messages, {turns} turns, {joined} joined a running one"


def _edited(seen: Seen, after: int) -> str:
    if seen.of(MessageEdited, after):
        return "changed while it waited"
    told = [each.message.text for each in seen.of(MessageAccepted, after)]
    return "told as a change" if any("It now says" in text for text in told) else ""


def _file(seen: Seen, after: int) -> str:
    for accepted in seen.of(MessageAccepted, after):
        for each in accepted.message.attachments:
            return f"{each.name}, {each.media_type}, {len(each.data)} bytes"
    return ""


def _pressed(seen: Seen, after: int) -> str:
    closed = [each for each in seen.of(QuestionClosed, after) if each.answer]
    return f"answered {closed[0].answer!r}" if closed else ""


STEPS = (
    WalkStep("a message", "Send:  hello", _answered),
    WalkStep(
        "a stop",
        "Send:  count   When you see numbers, send  stop  and look: is there a reply at once, and "
        "do no more numbers come?",
        _stopped,
    ),
    WalkStep("a burst", "Send three short messages, as fast as you can.", _one_turn),
    WalkStep("an edit", "Change the words of the last message that you sent.", _edited),
    WalkStep("a file", "Send a small picture or file.", _file),
    WalkStep("a button", "Send:  ask   and press (or react with)  yes", _pressed),
)


async def walk(
    channel: Channel,
    *,
    step_s: float = STEP_S,
    steps: Sequence[WalkStep] = STEPS,
    out: TextIO | None = None,
) -> int:
    """Returns the exit code: 0 if every step was seen."""
    out = out or sys.stdout
    seen = Seen()
    agent = loop_agent(
        ScriptedModel(Script(SCRIPT, repeat=True)), ToolRegistry([ask_tool()]), LoopSettings()
    )
    rows = RingingRows(seen)
    access = ChannelAccess(Ledger(rows, channel.name))
    code = await access.make_code(ChatKind.PRIVATE)
    passed = 0
    async with SessionEngine(agent, MemoryStore(), observe=seen.note) as engine:
        hub = ChannelHub(engine, rows)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(hub.run, channel)
            first = WalkStep("pairing", f"Send this to the bot, in private:  {code}", rows.paired)
            everything = (first, *steps)
            for number, step in enumerate(everything, 1):
                is_seen = await _take(step, f"{number} of {len(everything)}", seen, step_s, out)
                passed += is_seen
                if step is first and not is_seen:
                    break
            health = hub.statuses()[channel.name].health
            tasks.cancel_scope.cancel()
    if health.error:
        print(f"The platform's last error: {health.error}", file=out)
    print(f"{passed} of {len(everything)} steps were seen.", file=out)
    return 0 if passed == len(everything) else 1


async def _take(step: WalkStep, number: str, seen: Seen, step_s: float, out: TextIO) -> bool:
    after = len(seen.events)
    print(f"\n{number}, {step.name}. {step.ask}", file=out, flush=True)
    with anyio.move_on_after(step_s):
        while not (found := step.found(seen, after)):
            await seen.more.wait()
        print(f"  ok: {found}", file=out, flush=True)
        return True
    begun = "an answer began" if seen.of(AssistantSaid, after) else "nothing came"
    print(f"  NOT SEEN within {step_s:.0f} s: {begun}", file=out, flush=True)
    return False


class RingingRows(MemoryRows):
    """Rings when somebody is paired."""

    def __init__(self, seen: Seen) -> None:
        super().__init__()
        self._seen = seen
        self._paired = False

    async def put(self, rows: Sequence[Row]) -> None:
        await super().put(rows)
        if any(row.kind == "pairing" for row in rows):
            self._paired = True
            self._seen.ring()

    def paired(self, seen: Seen, after: int) -> str:
        return "paired" if self._paired else ""
