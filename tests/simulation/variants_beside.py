"""Engines with a fault beside or below a turn: sub-agents, compaction, titles. Each differs in one
part, as in `variants`."""

from __future__ import annotations

from functools import partial

import msgspec

from bargein.cancel import CancelSource, Cause, Token, bridge
from bargein.contracts.event import SessionTitled
from bargein.contracts.store import Commit, SessionHead, Store
from bargein.contracts.tool import Toolbox
from bargein.session.commands import Command, Compact
from bargein.session.decide import decide
from bargein.session.rules.moves import Decision
from bargein.session.state import SessionState
from bargein.session.turn import Turn
from bargein.testing.seeded import Seeded
from bargein.testing.simulation.life import Life
from bargein.testing.simulation.plan import Plan
from bargein.testing.simulation.store import Disk, LifeStore
from bargein.testing.simulation.world import World

change = msgspec.structs.replace


# Sub-agents


class AStopOfOneChildStopsItsSiblings(World):
    """Whoever stops one sub-agent of a call stops all of them."""

    def __init__(self, plan: Plan, run: Seeded) -> None:
        super().__init__(plan, run)
        self._siblings: dict[str, CancelSource] = {}

    def make_toolbox(self, life: Life, turn: Turn) -> Toolbox:
        call, is_child, _ = turn.session.rpartition(".")
        if is_child:
            name = f"{life.number} {call}"
            one_for_all = self._siblings.setdefault(name, CancelSource(name, clock=self.clock))
            bridge(turn.token, partial(_pass_on, turn.token, one_for_all))
            bridge(one_for_all.token, partial(_pass_on, one_for_all.token, turn.source))
        return super().make_toolbox(life, turn)


def _pass_on(stopped: Token, to: CancelSource) -> None:
    reason = stopped.reason
    assert reason is not None
    if reason.root.cause is Cause.USER_STOP:
        to.cancel(reason.root)


# Compaction


class ACompactionLetsGoOfWhatIsHeld(World):
    """It is taken for a word of the user's to go on."""

    def decide(self, state: SessionState, command: Command) -> Decision:
        if isinstance(command, Compact):
            state = change(state, held=False)
        return decide(state, command)


# Titles


class ATitleIsMadeAgain(World):
    """After a restart nobody knows that there was one."""

    def make_store(self, life: Life, disk: Disk) -> Store:
        return _ForgetsTitles(life, disk)


class _ForgetsTitles(LifeStore):
    async def claim(self, session: str) -> SessionHead | None:
        head = await super().claim(session)
        return change(head, title="") if head is not None else None


class ARenameIsNotKept(World):
    """It is in the log, and a list of sessions shows the old one."""

    def make_store(self, life: Life, disk: Disk) -> Store:
        return _KeepsTheFirstTitle(life, disk)


class _KeepsTheFirstTitle(LifeStore):
    async def commit_one(self, commit: Commit) -> None:
        by = [event.by for event in commit.events if isinstance(event, SessionTitled)]
        renamed = any(each.startswith("user") for each in by)
        await super().commit_one(change(commit, title=None) if renamed else commit)
