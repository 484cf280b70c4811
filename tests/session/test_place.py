"""Where a session works: its folder and its model, in its log; an engine that works in many
folders."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import anyio
import pytest

from bargein import Agent, Engine
from bargein.contracts.event import MessageAccepted, SessionPlaced
from bargein.contracts.place import SessionPlace
from bargein.errors import UserError
from bargein.models.script import Call, Say, Wait
from bargein.models.scripted import ScriptedModel
from bargein.runtime.config import load_config
from bargein.runtime.placed_agent import PlacedAgent
from bargein.session.sending import Busy, TurnFailed
from bargein.session.session import Session
from bargein.session.turn import Turn
from bargein.stores.memory import MemoryStore
from tests.session.world import Gate, HeldStore

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.parametrize("anyio_backend", ["asyncio"]),
]


def engine_without_places(store: MemoryStore) -> Engine[str]:
    return Engine(Agent(ScriptedModel([[Say("done")]] * 4)), store=store)


async def places_in_log(session: Session[str]) -> list[SessionPlace]:
    events = [recorded.event for recorded in await session.events()]
    return [event.place for event in events if isinstance(event, SessionPlaced)]


async def test_a_place_is_written_down_with_the_first_words_and_before_them() -> None:
    store = MemoryStore()
    here, there = SessionPlace("/here", "scripted"), SessionPlace("/there")
    async with engine_without_places(store) as engine:
        session = await engine.session("s")
        await session.set_place(here)
        await session.set_place(there)
        assert await session.place() == there
        assert await session.position() == 0
        assert await engine.sessions() == []
        await (await session.send("Hi")).result()
        first, second = (await session.events())[:2]
        assert isinstance(first.event, SessionPlaced)
        assert isinstance(second.event, MessageAccepted)
        assert await places_in_log(session) == [there]
        await session.set_place(there)
        await session.set_place(here)
        assert await places_in_log(session) == [there, here]
        [listed] = await engine.sessions()
        assert engine.workspace_of(listed) == "/here"
    async with engine_without_places(store) as engine:
        assert await (await engine.session("s")).place() == here


class Folders:
    """An engine that works in the folders of its sessions, with a model of its own in each."""

    def __init__(self, scripts: Mapping[str, ScriptedModel]) -> None:
        self.scripts = scripts
        self.asked: list[tuple[SessionPlace, dict[str, str]]] = []

    def agent_of(self, place: SessionPlace, environment: Mapping[str, str]) -> PlacedAgent:
        self.asked.append((place, dict(environment)))
        if not Path(place.workspace).is_dir():
            raise UserError(f"there is no folder {place.workspace}")
        model = self.scripts[Path(place.workspace).name]
        config = load_config({"PATH": "/usr/bin:/bin", **environment})
        return PlacedAgent(Agent(model, workspace=place.workspace, mode="full"), config)

    def engine(self, store: MemoryStore | None = None) -> Engine[str]:
        async def without(turn: object) -> None:
            raise UserError("it has no place")

        return Engine(without, store=store or MemoryStore(), agent_of=self.agent_of)


def shows_folder() -> ScriptedModel:
    command: dict[str, object] = {"command": "pwd; echo $FOO"}
    return ScriptedModel([[Call("terminal", command)], [Say("seen")]] * 2)


async def test_commands_run_in_the_folder_of_their_session(tmp_path: Path) -> None:
    folders = {name: tmp_path / name for name in ("one", "two")}
    for folder in folders.values():
        folder.mkdir()
    stage = Folders({name: shows_folder() for name in folders})
    async with stage.engine() as engine:
        for name, folder in folders.items():
            session = await engine.session(name)
            await session.set_place(
                SessionPlace(str(folder)), environment={"FOO": f"foo of {name}"}
            )
            assert (await (await session.send("look")).result()).text == "seen"
            shown = str(await session.transcript())
            assert str(folder) in shown
            assert f"foo of {name}" in shown
        assert engine.opened_for("one") != engine.opened_for("two")
        bare = await engine.session("bare")
        with pytest.raises(TurnFailed, match="it has no place"):
            await (await bare.send("look")).result()


async def test_sessions_in_one_folder_share_their_agent(tmp_path: Path) -> None:
    stage = Folders({tmp_path.name: shows_folder()})
    place = SessionPlace(str(tmp_path))
    async with stage.engine() as engine:
        for name in ("a", "b"):
            await (await engine.session(name)).set_place(place)
        assert len(stage.asked) == 1
        one, two = engine.opened_for("a"), engine.opened_for("b")
        assert one is not None
        assert two is not None
        assert one[0] is two[0]
        assert one[1] is not two[1]


async def test_a_session_does_not_move_while_its_turn_runs(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    stage = Folders({"here": ScriptedModel([[Say("a"), Wait("gate")]]), "there": shows_folder()})
    async with stage.engine() as engine:
        session = await engine.session("s")
        await session.set_place(SessionPlace(str(here)))
        sent = await session.send("look")
        with pytest.raises(Busy, match="stop it before"):
            await session.set_place(SessionPlace(str(there)))
        await session.interrupt()
        await sent.result()
        await session.set_place(SessionPlace(str(there)))
        await (await session.send("look")).result()
        assert str(there) in str(await session.transcript())
        assert await places_in_log(session) == [SessionPlace(str(here)), SessionPlace(str(there))]


async def test_a_session_whose_folder_is_gone_can_be_read(tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    store = MemoryStore()
    stage = Folders({"gone": shows_folder()})
    async with stage.engine(store) as engine:
        session = await engine.session("s")
        await session.set_place(SessionPlace(str(folder)))
        await (await session.send("look")).result()
    folder.rmdir()
    async with stage.engine(store) as engine:
        session = await engine.session("s")
        assert "seen" in str(await session.transcript())
        with pytest.raises(TurnFailed, match=r"nothing can work in .*: there is no folder"):
            await (await session.send("look")).result()
        with pytest.raises(UserError, match="there is no folder"):
            await session.set_place(SessionPlace(str(tmp_path / "nowhere")))
        await session.set_place(SessionPlace(str(_made(folder))))
        await (await session.send("look")).result()


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


async def test_a_cancelled_move_is_the_same_in_the_log_and_in_memory(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    store = HeldStore()
    stage = Folders({"here": ScriptedModel([[Say("a")]]), "there": shows_folder()})
    async with stage.engine(store) as engine:
        session = await engine.session("s")
        await session.set_place(SessionPlace(str(here)))
        await (await session.send("look")).result()
        await session.settled()
        store.hold(SessionPlaced)
        async with anyio.create_task_group() as group:
            group.start_soon(session.set_place, SessionPlace(str(there)))
            await store.reached.wait()
            group.cancel_scope.cancel()
        store.release()
        assert await session.place() == SessionPlace(str(there))
        await (await session.send("look")).result()
        assert str(there) in str(await session.transcript())


async def test_a_session_that_leaves_memory_while_its_agent_opens_is_placed(
    tmp_path: Path,
) -> None:
    class LeavesMeanwhile(Folders):
        engine_: Engine[str] | None = None

        def agent_of(self, place: SessionPlace, environment: Mapping[str, str]) -> PlacedAgent:
            if self.engine_ is not None:
                self.engine_.core.let_go("s")
                self.engine_ = None
            return super().agent_of(place, environment)

    stage = LeavesMeanwhile({tmp_path.name: shows_folder()})
    async with stage.engine() as engine:
        session = await engine.session("s")
        stage.engine_ = engine
        await session.set_place(SessionPlace(str(tmp_path)))
        assert engine.opened_for("s") is not None
        await (await session.send("look")).result()
        assert str(tmp_path) in str(await session.transcript())


async def test_a_turn_keeps_its_permissions_and_snapshots_when_its_session_moves(
    tmp_path: Path,
) -> None:
    gate = Gate()

    async def agent(turn: Turn) -> None:
        await gate()

    stage = Folders({tmp_path.name: shows_folder()})
    async with Engine(agent, store=MemoryStore(), agent_of=stage.agent_of) as engine:
        session = await engine.session("s")
        sent = await session.send("work")
        await gate.reached.wait()
        actor = engine.core.actor_in_memory("s")
        assert actor is not None
        before = actor.parts
        await session.set_place(SessionPlace(str(tmp_path)))
        assert actor.parts is before
        assert (actor.children.below, actor.files.checkpoints) == (before.below, None)
        gate.opened.set()
        await sent.result()
        await (await session.send("look")).result()
        assert actor.parts is not before
        assert str(tmp_path) in str(await session.transcript())


async def test_an_agent_is_closed_to_the_end_when_the_engine_closes(tmp_path: Path) -> None:
    stage = Folders({tmp_path.name: shows_folder()})
    closed: list[str] = []

    async def close() -> None:
        await anyio.sleep(0.01)
        closed.append("agent")

    async with stage.engine() as engine:
        session = await engine.session("s")
        await session.set_place(SessionPlace(str(tmp_path)))
        places = engine._places
        assert places is not None
        for each in places._open.values():
            each.stack.push_async_callback(close)
    assert closed == ["agent"]
    assert not places._opening
