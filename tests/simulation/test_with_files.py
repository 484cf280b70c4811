"""Worlds with snapshots of files: rollbacks put files back, and somebody beside the users takes
turns back, tells what was heard and moves the sessions. No law is broken in any.

The snapshots are names, and take their time: a moment, some seconds, or a minute. Some fail.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from functools import partial

import anyio
import msgspec
import pytest

from bargein.contracts.checkpoint import (
    CheckpointError,
    FileFate,
    FilesUndone,
    FileUndone,
    Span,
)
from bargein.contracts.event import TurnHidden
from bargein.contracts.message import HeardSoFar
from bargein.contracts.model import ModelRequest, Text, UserMessage
from bargein.contracts.place import SessionPlace
from bargein.errors import BargeinError
from bargein.session.actor import Parts
from bargein.session.commands import Command
from bargein.session.engine import SessionEngine
from bargein.session.rules.moves import Decision
from bargein.session.session import Session
from bargein.session.state import SessionState
from bargein.testing.engine_invariants import check_request
from bargein.testing.invariants import LawBroken
from bargein.testing.seeded import Backend, Seeded
from bargein.testing.simulate import simulate
from bargein.testing.simulation.agent import SimulatedHooks
from bargein.testing.simulation.life import Life
from bargein.testing.simulation.plan import Plan
from bargein.testing.simulation.record import Record, Work
from bargein.testing.simulation.world import World

SEEDS = 1200
BLOCK = 20

OTHER = "the other"
PACES_S = (0.01, 0.1, 0.3, 3.0)
PATIENCE_S = (0.05, 2.0, 1e9)
DEEDS = ("undo", "undo", "undo words", "rewind", "rewind", "redo", "preview", "heard", "place")


class Snapshots:
    """`contracts.checkpoint.Checkpoints` of a place."""

    def __init__(self, life: Life, place: SessionPlace | None = None) -> None:
        self.place = place
        self._life = life
        self._taken = 0

    async def save(self) -> str:
        await self._take("save")
        return f"{self._life.number} {self.place} {self._taken}"

    def work(self) -> SnapshotsAround:
        return SnapshotsAround(self)

    async def preview(self, spans: Sequence[Span], overrule: Sequence[str] = ()) -> FilesUndone:
        await self._take("preview")
        return FilesUndone()

    async def undo(self, spans: Sequence[Span], overrule: Sequence[str] = ()) -> FilesUndone:
        with anyio.CancelScope(shield=True):
            chance = await self._take("undo")
        if not spans or chance < 0.3:
            return FilesUndone()
        file = FileUndone("file", FileFate.CHANGED_BACK)
        return FilesUndone((file,), 0, Span(f"before {self._taken}", f"after {self._taken}"))

    async def diff(self, spans: Sequence[Span]) -> str:
        return ""

    async def _take(self, what: str) -> float:
        self._taken += 1
        rng = self._life.world.random("files", self._life.number, self.place, what, self._taken)
        longest_s = rng.choice((0.0, 0.0, 0.0, 0.3, 0.3, 0.3, 0.3, 8.0, 8.0, 60.0))
        await self._life.sleep(longest_s * rng.random())
        if rng.random() < 0.1:
            raise CheckpointError("simulated: the disk is full")
        return rng.random()


class SnapshotsAround:
    def __init__(self, snapshots: Snapshots) -> None:
        self._snapshots = snapshots
        self._before: str | None = None

    async def begins(self) -> None:
        self._before = await self._snapshots.save()

    async def ends(self) -> tuple[Span, ...]:
        if self._before is None:
            return ()
        return (Span(self._before, await self._snapshots.save()),)


class RecordBesideOther(Record):
    def saw_cancel(self, work: Work) -> None:
        """A turn that is taken back is stopped first. The plan knows nothing of such a stop."""
        reason = work.token.reason
        if reason is not None and reason.root.detail == OTHER:
            self.cancels[work.token] = reason
        else:
            super().saw_cancel(work)


class WorldWithFiles(World):
    def __init__(self, plan: Plan, run: Seeded) -> None:
        super().__init__(plan, run)
        self.record = RecordBesideOther(self.limits, self._break_off)

    def make_engine(self, life: Life) -> SessionEngine:
        async def parts_of(
            parts: Parts,
            session_id: str,
            place: SessionPlace,
            *,
            environment: Mapping[str, str] | None = None,
            brought: bool = False,
            created_at: float = 0.0,
        ) -> Parts:
            rng = self.random("place", life.number, session_id, place, self.now())
            await life.sleep(rng.choice((0.0, 0.0, 0.1, 2.0)))
            return msgspec.structs.replace(parts, checkpoints=Snapshots(life, place))

        return SessionEngine(
            self.make_agent(life),
            life.store,
            hooks=SimulatedHooks(life) if self.plan.temper.hooks else None,
            limits=self.engine_limits,
            compact=self.make_compact(life),
            titles=self.make_titles(life),
            clock=self.clock,
            now=self.now,
            decide=partial(self._watched, life),
            checkpoints=Snapshots(life),
            parts_of=parts_of,
        )

    def decide(self, state: SessionState, command: Command) -> Decision:
        after, effects = super().decide(state, command)
        if after.restoring and after.turn is not None:
            self.record.blame(4, f"{after.turn} begins before {after.restoring} is put back")
        return after, effects

    def check_request(self, life: Life, session: str, request: ModelRequest) -> None:
        """As for every world, and a turn that was taken back takes no other one with it."""
        try:
            check_request(request)
        except LawBroken as broken:
            self.record.breaks(broken)
        if self.record.owners.get(session) != life.number:
            return
        said = [
            part.text
            for message in request.messages
            if isinstance(message, UserMessage)
            for part in message.content
            if isinstance(part, Text)
        ]
        laws = self.record.laws_of(session)
        hidden = {each.event.turn for each in laws.log if isinstance(each.event, TurnHidden)}
        for name, turn in laws.taken.items():
            message, settled = laws.messages[name], laws.turns[turn].settled
            is_hidden = turn in hidden or (settled is not None and settled.hidden)
            times = 0 if is_hidden else 1
            if laws.may_be_summarised(name):
                times = min(times, said.count(message.text))
            is_word = message.sender != "background" and name not in laws.late_answers
            if is_word and said.count(message.text) != times:
                told = f"{said.count(message.text)} x, and {sorted(hidden)} are hidden"
                self.record.blame(3, f"{session}: the model is told {message.text} {told}")

    async def _visit_all(self, engine: SessionEngine) -> bool:
        """Also: a session at rest works with the parts of its place."""
        quiet = await super()._visit_all(engine)
        for name in engine.in_memory if quiet else ():
            actor = engine.actor_in_memory(name)
            if actor is not None and actor.session_id == actor.root:
                used, saved = actor.parts.checkpoints, actor.files.checkpoints
                assert isinstance(used, Snapshots)
                if used.place != actor.state.place or saved is not used:
                    self.record.blame(4, f"{name} is in {actor.state.place}, works in {used.place}")
        return quiet

    # Somebody beside the users

    async def _be_users(self) -> None:
        async with anyio.create_task_group() as group:
            for number in range(self.plan.sessions):
                for hand in range(2):
                    rng = self.random(OTHER, number, hand)
                    group.start_soon(self._meddle, f"s{number}", rng)
            await super()._be_users()
            group.cancel_scope.cancel()

    async def _meddle(self, name: str, rng: random.Random) -> None:
        while True:
            await anyio.sleep(rng.random() * rng.choice(PACES_S))
            life = await self.usable_life()
            assert life.engine is not None
            deed = rng.choice(DEEDS)
            life.note(OTHER, deed, name)
            with life.calling(), life.asking(name), anyio.move_on_after(rng.choice(PATIENCE_S)):
                try:
                    await self._do(deed, await life.engine.session(name), rng)
                    life.note(OTHER, deed, name, "is done")
                except BargeinError as error:
                    life.note(OTHER, deed, name, "is told", error)

    async def _do(self, deed: str, session: Session[str], rng: random.Random) -> None:
        turns = (await session.state()).turns
        turn = f"t{rng.randint(max(1, turns - 2), max(1, turns))}"
        match deed:
            case "undo":
                await session.undo(by=OTHER)
            case "undo words":
                await session.undo(files=False, by=OTHER)
            case "rewind":
                await session.rewind(turn, by=OTHER)
            case "redo":
                await session.redo(by=OTHER)
            case "preview":
                await session.preview_undo()
            case "heard":
                # Of a turn that cannot be stopped: the rest of an answer is what the plan checks.
                await session.interrupt(
                    expected_turn="none", by=f"{OTHER} heard", heard=HeardSoFar(turn, 1000)
                )
            case _:
                place = SessionPlace(f"/{rng.choice('ab')}", rng.choice(("one", "another")))
                await session.set_place(place, by=OTHER)


def backend_of(block: int) -> Backend:
    return "asyncio" if block // BLOCK % 5 == 4 else "trio"


@pytest.mark.parametrize("first", range(0, SEEDS, BLOCK))
def test_no_law_is_broken(first: int) -> None:
    for seed in range(first, first + BLOCK):
        outcome = simulate(seed, backend=backend_of(first), make_world=WorldWithFiles)
        assert outcome.broken is None, outcome.story()
