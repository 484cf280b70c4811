"""A conversation without a terminal: what it shows through its face, and what it does not."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import anyio
import pytest

from bargein.cancel import Token
from bargein.cli.chat.activity import Activity
from bargein.cli.chat.before import Piece
from bargein.cli.chat.commands import run_command
from bargein.cli.chat.talk import Talk, Work
from bargein.contracts.event import QuestionAsked, Recorded
from bargein.contracts.message import Mode
from bargein.contracts.model import Model, ModelRequest, ModelStream
from bargein.contracts.store import Commit, StoreFailed
from bargein.contracts.tool import Question
from bargein.errors import UserError
from bargein.models.local.errors import WeightsUnavailable
from bargein.models.script import Answer, Call, Say, Wait
from bargein.models.scripted import ScriptedModel
from bargein.runtime.agent import Agent
from bargein.runtime.config import Config, load_config
from bargein.runtime.engine import Engine
from bargein.session.broadcast import Watched
from bargein.session.session import Session
from bargein.stores.memory import MemoryStore
from bargein.view import ShownCall

on_asyncio = pytest.mark.parametrize("anyio_backend", ["asyncio"])


class HeardFace:
    """A `Face` that records what it is given to show and to begin."""

    keys: Mapping[str, str] = {"send": "Enter", "stop": "Ctrl-C"}

    def __init__(self) -> None:
        self.told: list[str] = []
        self.noticed: list[str] = []
        self.spawned: list[Work] = []
        self.from_engine: Callable[[str], object] = self.noticed.append

    def tell(self, style: str, words: str) -> None:
        self.told.append(words)

    def show(self, event: Watched) -> None:
        pass

    def show_again(self, pieces: list[Piece]) -> None:
        pass

    def show_whole(self, call: ShownCall) -> None:
        self.told.append(str(call))

    def notice(self, words: str) -> None:
        self.noticed.append(words)

    def put_back(self, text: str) -> None:
        self.told.append(f"put back: {text}")

    def leave(self) -> None:
        pass

    can_ask = True
    can_draw = True

    def ask(self, question: Question) -> None:
        self.told.append(question.text)

    def pick(self, command: str) -> bool:
        return False

    def changed(self) -> None:
        pass

    def spawn(self, work: Work) -> None:
        self.spawned.append(work)


@asynccontextmanager
async def talking(face: HeardFace, model: str | Model, home: Path) -> AsyncIterator[Talk]:
    """A conversation that is ready, with an engine that keeps nothing."""

    def open_engine(config: Config, on_notice: Callable[[str], object]) -> Engine:
        face.from_engine = on_notice
        agent = Agent(model=model, asks=True)
        return Engine(agent, config=config, store="memory", on_notice=on_notice)

    talk = Talk(load_config({"BARGEIN_HOME": str(home)}), face, open_engine=open_engine)
    async with anyio.create_task_group() as group:
        group.start_soon(talk.run)
        await talk.ready.wait()
        yield talk
        group.cancel_scope.cancel()


@pytest.mark.anyio
@on_asyncio
async def test_the_tools_of_a_model_that_is_given_none_are_told_as_another_ones(
    tmp_path: Path,
) -> None:
    face = HeardFace()
    async with talking(face, "local", tmp_path) as talk:
        face.told.clear()
        await run_command(talk, "/tools")
        await run_command(talk, "/model openai:any@http://127.0.0.1:9/v1")
        await run_command(talk, "/tools")
    of_local, _, of_another = face.told
    assert of_local.startswith("local gets none of these")
    assert "  ask  " in of_local
    assert of_another.startswith("  ask  ")


UNFETCHED = "The embedded model could not be fetched: no network (it is off). Do this instead."


class Unfetched:
    """A model that cannot be loaded; `asked` when somebody waits for it. `tell` hears of both."""

    name = "local"
    context_tokens = None

    def __init__(self) -> None:
        self.endpoints = (self,)
        self.asked = anyio.Event()
        self.tell: Callable[[str], object] = str

    async def warm_up(self, token: Token) -> None:
        self.tell("Loading")
        raise WeightsUnavailable(UNFETCHED)

    @asynccontextmanager
    async def open(self, request: ModelRequest, token: Token) -> AsyncIterator[ModelStream]:
        self.tell("Reading")
        self.asked.set()
        with token.scope():
            await anyio.sleep_forever()
        raise WeightsUnavailable(UNFETCHED)
        yield

    async def aclose(self) -> None:
        pass


@pytest.mark.anyio
@on_asyncio
async def test_a_model_that_cannot_be_loaded_is_told_of_once(tmp_path: Path) -> None:
    face, model = HeardFace(), Unfetched()
    async with talking(face, model, tmp_path) as talk:
        warm_up = face.spawned[0]
        with pytest.raises(WeightsUnavailable):
            await warm_up()
        short = "failed, as before: The embedded model could not be fetched: no network (it is off)"
        assert talk.activity.failed_in_words(UNFETCHED) == short
        await talk.send("hello", Mode.STEER)
        await model.asked.wait()
        # The turn that waits for it tells.
        await warm_up()


@pytest.mark.anyio
@on_asyncio
async def test_how_far_the_model_is_is_told_while_it_is_waited_for(tmp_path: Path) -> None:
    face, model = HeardFace(), Unfetched()
    async with talking(face, model, tmp_path) as talk:
        model.tell = face.from_engine
        model.tell("Reading, for a title")
        assert face.noticed == []
        with pytest.raises(WeightsUnavailable):
            await face.spawned[0]()
        model.tell("Reading, for another title")
        assert face.noticed == ["Loading"]
        await talk.send("hello", Mode.STEER)
        await model.asked.wait()
        assert face.noticed == ["Loading", "Reading"]


def test_a_failure_is_told_in_full_unless_it_was_just_now() -> None:
    activity = Activity(lambda: 0.0)
    assert activity.failed_in_words("it broke. Mend it.") == "failed: it broke. Mend it."
    assert activity.failed_in_words("it broke. Mend it.") == "failed, as before: it broke"
    assert activity.failed_in_words("the rest broke") == "failed: the rest broke"
    assert activity.failed_in_words("it broke. Mend it.") == "failed: it broke. Mend it."


@pytest.mark.anyio
@on_asyncio
@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("/inbox drop", "which message? /inbox drop ID; /inbox lists them"),
        ("/inbox edit", "which message, and what instead? /inbox edit ID WORDS"),
        ("/inbox edit m1", "which message, and what instead? /inbox edit ID WORDS"),
        ("/tasks stop", "which task? /tasks stop ID; /tasks lists them"),
        ("/modell", "no such command: /modell; did you mean /model?"),
        ("/xyzzy", "no such command: /xyzzy; /help lists them"),
        ("/sessions nope", "there is no session 'nope'; /sessions lists them"),
        ("/new two\nlines", "cannot name a session: give 1 to 200 visible"),
        ("/export", "nothing has been said here yet"),
    ],
)
async def test_a_command_that_cannot_be_obeyed_says_what_to_write(
    tmp_path: Path, line: str, told: str
) -> None:
    face = HeardFace()
    async with talking(face, Unfetched(), tmp_path) as talk:
        with pytest.raises(UserError) as caught:
            await run_command(talk, line)
    assert told in str(caught.value)


@pytest.mark.anyio
@on_asyncio
async def test_a_session_is_told_as_new_only_if_it_is(tmp_path: Path) -> None:
    face, model = HeardFace(), Unfetched()
    async with talking(face, model, tmp_path) as talk:
        first = talk.opened()[1].id
        await run_command(talk, "/sessions")
        assert face.told[-1] == "nothing has been said in any session yet"
        await talk.send("hello", Mode.STEER)
        await model.asked.wait()
        await run_command(talk, "/new other")
        assert face.told[-1] == f"a new session; /sessions {first} goes back"
        # Whoever leaves here is not told to come back: nothing was said.
        assert not talk.said
        await run_command(talk, "/sessions")
        assert face.told[-1].splitlines()[0].endswith(" · working)")
        await run_command(talk, f"/new {first}")
        assert face.told[-1] == f"{first} already existed; /sessions other goes back"


class FullStore(MemoryStore):
    """Takes no commits while `full` is set."""

    full = False

    async def commit_one(self, commit: Commit) -> None:
        if self.full:
            raise StoreFailed("the disk is full, as the test says", retryable=True)
        await super().commit_one(commit)


@pytest.mark.anyio
@on_asyncio
async def test_a_stop_that_could_not_be_stored_is_shown_with_its_receipt(tmp_path: Path) -> None:
    """No event tells of it, so the chat would show nothing but that it is stopping."""
    face, model, store = HeardFace(), ScriptedModel([[Say("One "), Wait("hold")]]), FullStore()

    def open_engine(config: Config, on_notice: Callable[[str], object]) -> Engine:
        return Engine(Agent(model=model), config=config, store=store, on_notice=on_notice)

    talk = Talk(load_config({"BARGEIN_HOME": str(tmp_path)}), face, open_engine=open_engine)
    with anyio.fail_after(20):
        async with anyio.create_task_group() as group:
            group.start_soon(talk.run)
            await talk.ready.wait()
            assert talk.session is not None
            await talk.session.send("hello")
            await model.gate("hold").reached()
            store.full = True
            talk.stop()
            assert talk.stopping
            await face.spawned[-1]()
            assert "stopped in" in face.told[-1]
            assert "not stored: the disk did not take it" in face.told[-1]
            assert not talk.stopping
            store.full = False
            group.cancel_scope.cancel()


@pytest.mark.anyio
@on_asyncio
async def test_who_answers_second_reads_that_it_was_answered_already(tmp_path: Path) -> None:
    asks = [Call("ask", {"question": "Which?", "choices": ["left", "right"]})]
    face = HeardFace()
    async with talking(face, ScriptedModel([asks, [Say("ok")]]), tmp_path) as talk:
        session = talk.opened()[1]
        await talk.send("go", Mode.STEER)
        async with aclosing(session.watch(after=0)) as events:
            async for event in events:
                if isinstance(event, Recorded) and isinstance(event.event, QuestionAsked):
                    break
        (asked,) = await session.questions()
        assert isinstance(session, Session)
        await session.answer(asked.id, "left", by="Anna")
        await talk.answer(asked.id, "right")
        for recorded in await session.events():
            talk.activity.see(recorded)
        await talk.answer(asked.id, "right")
    assert face.told[-2:] == ["already answered or stopped", "already answered by Anna: left"]


@pytest.mark.anyio
@on_asyncio
async def test_words_that_came_too_late_for_a_question_are_back_in_the_line(
    tmp_path: Path,
) -> None:
    face = HeardFace()
    asks = [Call("ask", {"question": "What shall it be called?"})]
    async with talking(face, ScriptedModel([asks, [Say("ok")]]), tmp_path) as talk:
        session = talk.opened()[1]
        await talk.send("go", Mode.STEER)
        async with aclosing(session.watch(after=0)) as events:
            async for event in events:
                talk.activity.see(event)
                if isinstance(event, Recorded) and isinstance(event.event, QuestionAsked):
                    break
        (asked,) = await session.questions()
        await session.answer(asked.id, "Fred")
        await talk.answer(asked.id, "a longer name")
    assert face.told[-2:] == ["already answered or stopped", "put back: a longer name"]


@pytest.mark.anyio
@on_asyncio
async def test_a_side_question_is_answered_beside_the_turn_and_can_be_stopped(
    tmp_path: Path,
) -> None:
    work = Answer([Say("I work"), Wait("hold")], when="go")
    model = ScriptedModel(
        [
            work,
            Answer([Say("By the way: yes.")], when="really"),
            Answer([Say("By the"), Wait("aside")], when="long"),
        ]
    )
    face = HeardFace()
    async with talking(face, model, tmp_path) as talk:
        await talk.send("go", Mode.STEER)
        await model.gate("hold").reached()
        face.told.clear()
        face.spawned.clear()
        await run_command(talk, "/btw really?")
        (ask,) = face.spawned
        await ask()
        assert face.told[:2] == ["btw: really?", "By the way: yes."]
        assert "will not remember it" in face.told[2]
        assert talk.state is not None
        assert talk.state.busy
        talk.stop()
        await talk.opened()[1].settled()
        assert not talk.busy
        # With nothing else running, a stop is for the side question.
        face.told.clear()
        face.spawned.clear()
        async with anyio.create_task_group() as group:
            await run_command(talk, "/btw a long one")
            group.start_soon(face.spawned.pop())
            await model.gate("aside").reached()
            assert talk.busy
            talk.stop()
            group.start_soon(face.spawned.pop())
        assert face.told[1] == "By the"
        assert face.told[2].startswith("[stopped;")
        with pytest.raises(UserError, match="no side question"):
            await run_command(talk, "/btw stop")
