"""Opens agents for sessions that have a place, so that one engine works in many folders.

`agent_of` returns the agent for a place. Sessions in the same folder share one open agent with its
MCP servers and snapshots; each session has a model of its own. An agent is closed when no session
in memory uses it.

If no agent can be opened for a session's place, the session still comes into memory: it can be
read, and each of its turns fails with the reason.
"""

import hashlib
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import anyio
import msgspec

from bargein.contracts.live import Notice
from bargein.contracts.place import SessionPlace
from bargein.errors import BargeinError, UserError
from bargein.runtime.opened_agent import OpenedAgent, Surroundings, open_agent, tidy
from bargein.runtime.placed_agent import AgentOf, PlacedAgent
from bargein.session.actor import Actor, Parts
from bargein.session.agent import LoopAgent
from bargein.session.children import like
from bargein.session.permits import PermissionSettings
from bargein.session.turn import AgentFunction, Turn

if TYPE_CHECKING:
    from bargein.checkpoints.keeper import Keeper
    from bargein.checkpoints.repository import StageFolder
    from bargein.runtime.config import Config

ENVIRONMENTS_MAX = 1000
"""How many sessions may have an environment of their own. Beyond that the oldest has none."""


STAGE_NAME_CHARACTERS = 24

_Key = tuple[str, frozenset[tuple[str, str]], str]
"""The folder, the environment, and the name of the stage; empty for the folder itself."""


@dataclass(slots=True)
class _Open:
    opened: OpenedAgent
    stack: AsyncExitStack


class Places:
    """`own` are the keepers of folders in which the engine's own agent works."""

    def __init__(
        self, agent_of: AgentOf, around: Surroundings, own: "Mapping[str, Keeper]"
    ) -> None:
        self._agent_of = agent_of
        self._around = around
        self._open: dict[_Key, _Open] = {}
        self._opening: dict[_Key, anyio.Lock] = {}
        self._own_keepers = own
        self._tidied: set[Keeper] = set(own.values())
        self._keepers: dict[tuple[str, str], Keeper | None] = {}
        self._environments: dict[str, Mapping[str, str]] = {}
        self._keys: dict[str, set[_Key]] = {}
        self._now: dict[str, tuple[_Key, SessionPlace, Parts]] = {}
        self._actors: Callable[[str], Actor | None] = lambda session_id: None

    def show_notices_in(self, actor_of: Callable[[str], Actor | None]) -> None:
        self._actors = actor_of

    def agent_in(self, session_id: str) -> tuple[OpenedAgent, LoopAgent] | None:
        """Returns the agent that is open for a session, and its loop; None if it has no place or is
        not in memory."""
        found = self._now.get(session_id)
        if found is None or not isinstance(found[2].agent, LoopAgent):
            return None
        return self._open[found[0]].opened, found[2].agent

    def forget(self, session_id: str) -> None:
        """The session works in no place any more."""
        self._now.pop(session_id, None)
        self._keys.pop(session_id, None)

    async def parts_of(
        self,
        parts: Parts,
        session_id: str,
        place: SessionPlace,
        *,
        environment: Mapping[str, str] | None = None,
        brought: bool = False,
        created_at: float = 0.0,
    ) -> Parts:
        """`session.engine.PartsOf`."""
        staged = stage_name(session_id, created_at) if place.staged else ""
        try:
            return await self._parts_of(parts, session_id, place, environment, staged)
        except BargeinError as error:
            if session_id not in self._now:
                self._keys.pop(session_id, None)
            if not brought:
                raise
            where = place.workspace or "this session's folder"
            failing = _fails(UserError(f"nothing can work in {where}: {error}"))
            return msgspec.structs.replace(
                parts,
                agent=failing,
                compact=failing,
                toolbox=None,
                side_request=None,
                titles=None,
                below=like(failing),
            )

    async def _parts_of(
        self,
        parts: Parts,
        session_id: str,
        place: SessionPlace,
        lent: Mapping[str, str] | None,
        staged: str,
    ) -> Parts:
        environment = self._environments.get(session_id, {}) if lent is None else lent
        key = (place.workspace, frozenset(environment.items()), staged)
        before = self._now.get(session_id)
        if before is not None and before[:2] == (key, place):
            return before[2]
        while True:
            # Held before it is opened: another session that leaves memory meanwhile does not close
            # it. If this one did, it is held and opened again.
            self._keys.setdefault(session_id, set()).add(key)
            opened = await self._opened(key, place, environment)
            keeper = self._keepers.get((place.workspace, staged))
            if staged and keeper is not None:
                await keeper.open_stage()
            if key in self._keys.get(session_id, ()) and key in self._open:
                break
        self._tidy_once(parts, keeper, opened.config)
        model = opened.models.named(place.model) if place.model else None
        loop, tree = opened.loop_agent(model)
        made = msgspec.structs.replace(
            parts,
            agent=loop,
            compact=loop.compact,
            toolbox=opened.tree.registry,
            side_request=loop.side_request,
            titles=opened.titles(loop),
            below=tree.sub_agent,
            left=partial(self._left, parts.left),
            permission=PermissionSettings(
                opened.mode, parts.permission.answerable_by, opened.grants
            ),
            checkpoints=keeper,
            stage=keeper if staged else None,
        )
        if before is not None and before[0] == key and isinstance(before[2].agent, LoopAgent):
            # Only the model is another: a turn that runs uses it from its next step on.
            before[2].agent.model = loop.model
        self._now[session_id] = key, place, made
        self._environments[session_id] = environment
        if len(self._environments) > ENVIRONMENTS_MAX:
            del self._environments[next(iter(self._environments))]
        return made

    async def _opened(
        self, key: _Key, place: SessionPlace, environment: Mapping[str, str]
    ) -> OpenedAgent:
        async with self._opening.setdefault(key, anyio.Lock()):
            found = self._open.get(key)
            if found is None:
                placed = self._agent_of(place, environment)
                stage = self._stage_of(key[2])
                keeper = self._keeper_of(place, placed, stage)
                self._keepers[place.workspace, key[2]] = keeper
                async with AsyncExitStack() as stack:
                    opened = await open_agent(
                        placed.agent,
                        placed.config,
                        self._around,
                        stack,
                        grants=placed.grants,
                        on_notice=partial(self._notice, key),
                        stage=stage,
                    )
                    found = self._open[key] = _Open(opened, stack.pop_all())
        return found.opened

    def _stage_of(self, name: str) -> "StageFolder | None":
        if not name:
            return None
        from bargein.checkpoints.repository import StageFolder

        return StageFolder(name, str(self._around.stages() / name / "tree"))

    def _keeper_of(
        self, place: SessionPlace, placed: PlacedAgent, stage: "StageFolder | None"
    ) -> "Keeper | None":
        name = stage.name if stage is not None else ""
        if (place.workspace, name) in self._keepers:
            return self._keepers[place.workspace, name]
        own = self._own_keepers.get(place.workspace) if stage is None else None
        keeper = own or self._around.keeper_of(placed.agent, placed.config, stage)
        if stage is not None and keeper is None:
            raise UserError(
                "turns can be staged only where snapshots are taken: install git, and set "
                "checkpoints.enabled to true"
            )
        return keeper

    def _tidy_once(self, parts: Parts, keeper: "Keeper | None", config: "Config") -> None:
        """Drops snapshots that are too old or take too much room, when a folder is opened."""
        if keeper is not None and keeper not in self._tidied:
            self._tidied.add(keeper)
            parts.spawn(partial(tidy, keeper, config))

    def _notice(self, key: _Key, words: str) -> None:
        for session_id, (used, _, _) in list(self._now.items()):
            actor = self._actors(session_id) if used == key else None
            if actor is not None:
                actor.emit(Notice("", words))

    def _left(
        self,
        left: Callable[[Actor, BaseException | None], None],
        actor: Actor,
        error: BaseException | None,
    ) -> None:
        """The session has left memory. It may come back, and is then equipped anew."""
        self._now.pop(actor.session_id, None)
        self._keys.pop(actor.session_id, None)
        left(actor, error)
        used = {key for keys in self._keys.values() for key in keys}
        for key in [each for each in self._open if each not in used]:
            actor.spawn(partial(_to_the_end, self._open.pop(key).stack.aclose))
        for key in [each for each in self._opening if each not in used]:
            if not self._opening[key].locked():
                # It names the variables that were lent, such as keys of providers.
                del self._opening[key]
        folders = {(workspace, stage) for workspace, _, stage in used}
        for place in [each for each in self._keepers if each not in folders]:
            keeper = self._keepers.pop(place)
            if keeper is not None and keeper not in self._own_keepers.values():
                self._tidied.discard(keeper)
                actor.spawn(partial(_to_the_end, keeper.aclose))

    async def aclose(self) -> None:
        """Closes what is still open, after the sessions."""
        for each in list(self._open.values()):
            await each.stack.aclose()
        self._open.clear()
        for keeper in self._keepers.values():
            if keeper is not None and keeper not in self._own_keepers.values():
                await keeper.aclose()
        self._keepers.clear()


def stage_name(session_id: str, created_at: float) -> str:
    """A session that is deleted and made again does not find the stage that it had."""
    name = f"{session_id}\0{int(created_at)}"
    return hashlib.sha256(name.encode()).hexdigest()[:STAGE_NAME_CHARACTERS]


async def _to_the_end(close: Callable[[], Awaitable[None]]) -> None:
    """Close something also while the engine ends, which cancels its tasks. Each close has a
    bound."""
    with anyio.CancelScope(shield=True):
        await close()


def _fails(error: UserError) -> AgentFunction:
    async def fail(turn: Turn) -> None:
        raise error

    return fail
