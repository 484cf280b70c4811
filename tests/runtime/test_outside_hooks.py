"""Hooks of the configuration: which count, what they learn, and that nothing waits for them."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from aiohttp import web

from bargein.contracts.budget import Budget
from bargein.contracts.place import SessionPlace
from bargein.errors import UserError
from bargein.models.script import Answer, Call, Say, Wait
from bargein.models.scripted import ScriptedModel
from bargein.runtime.agent import Agent
from bargein.runtime.config import Config, load_config, trust_file
from bargein.runtime.engine import Engine
from bargein.runtime.placed_agent import PlacedAgent
from bargein.stores.memory import MemoryStore
from tests.session.world import LIMITS, WITHIN_S, completes, until

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {
        "HOME": str(tmp_path),
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "BARGEIN_HOME": str(tmp_path / "data"),
        "PATH": os.environ["PATH"],
    }


@pytest.fixture
def configured(tmp_path: Path, environment: dict[str, str]) -> Callable[..., Config]:
    def made(own: str = "", project: str = "", **more: str) -> Config:
        folder = tmp_path / "config" / "bargein"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.toml").write_text(own)
        (tmp_path / "project").mkdir(exist_ok=True)
        if project:
            (tmp_path / "project" / "bargein.toml").write_text(project)
        return load_config({**environment, **more}, folder=tmp_path / "project")

    return made


def writes(file: Path, on: str, *, timeout_s: float = 10.0) -> str:
    """A hook that writes what it learns as one line."""
    command = f"{{ cat; echo; }} >> {file}"
    return f'[[hooks]]\non = {on}\ncommand = """{command}"""\ntimeout_s = {timeout_s}\n'


def learned(file: Path) -> list[dict[str, Any]]:
    if not file.exists():
        return []
    return [json.loads(line) for line in file.read_text().splitlines() if line.strip()]


@asynccontextmanager
async def engine_with(
    config: Config, *script: Any, tools: Any = (), budget: Budget | None = None, store: Any = None
) -> AsyncIterator[tuple[Engine, ScriptedModel]]:
    model = ScriptedModel(script)
    agent = Agent(model=model, tools=tools, budget=budget or Budget(), asks=True)
    engine = Engine(agent, config=config, store=store or MemoryStore(), limits=LIMITS)
    async with engine:
        yield engine, model


class TestWhatTheyLearn:
    async def test_a_stop_with_its_receipt(
        self, configured: Callable[..., Config], tmp_path: Path
    ) -> None:
        file = tmp_path / "learned"
        config = configured(writes(file, '["stopped", "settled"]'))
        async with engine_with(config, [Say("half"), Wait("hold")]) as (engine, model):
            session = await engine.session("alice")
            await session.send("go")
            await model.gate("hold").reached()
            receipt = await session.interrupt()
            await until(lambda: learned(file))
        (notice,) = learned(file)
        assert (notice["event"], notice["session"], notice["turn"]) == ("stopped", "alice", "t1")
        assert notice["receipt"]["elapsed_ms"] == pytest.approx(receipt.elapsed_ms)
        assert notice["receipt"]["spent"]["estimated"] is True

    async def test_every_end_of_a_turn_is_settled(
        self, configured: Callable[..., Config], tmp_path: Path
    ) -> None:
        file = tmp_path / "learned"
        async with engine_with(configured(writes(file, '"settled"')), [Say("Done.")]) as (
            engine,
            _,
        ):
            await completes(await engine.session("alice"), "go")
        # The engine was closed at once, and waited for the hook.
        (notice,) = learned(file)
        assert (notice["event"], notice["outcome"], notice["receipt"]) == (
            "settled",
            "completed",
            None,
        )

    async def test_a_question_that_waits(
        self, configured: Callable[..., Config], tmp_path: Path
    ) -> None:
        file = tmp_path / "learned"
        ask = Call("ask", {"question": "Red or blue?", "choices": ["red", "blue"]})
        config = configured(writes(file, '["question"]'))
        async with engine_with(config, [ask], [Say("Red.")]) as (engine, _):
            session = await engine.session("alice")
            sent = await session.send("go")
            await until(lambda: learned(file))
            (notice,) = learned(file)
            assert notice["question"]["text"] == "Red or blue?"
            with anyio.fail_after(WITHIN_S):
                await session.answer(notice["question_id"], "red")
                await sent.result()

    async def test_a_budget_that_is_low(
        self, configured: Callable[..., Config], tmp_path: Path
    ) -> None:
        async def work() -> str:
            """Work."""
            return "worked"

        file = tmp_path / "learned"
        script = [Answer([Call("work")])] * 4 + [Answer([Say("Done.")])]
        config = configured(writes(file, '["budget"]'))
        many = engine_with(config, *script, tools=[work], budget=Budget(steps=10))
        async with many as (engine, _):
            await completes(await engine.session("alice"), "go")
        # Once, when eight of ten steps were taken.
        (notice,) = learned(file)
        budget = notice["budget"]
        assert (budget["scope"], budget["kind"], budget["used"]) == ("turn", "steps", 8)

    async def test_a_crash_that_was_recovered(
        self, configured: Callable[..., Config], tmp_path: Path
    ) -> None:
        file, store = tmp_path / "learned", Abrupt()
        config = configured(writes(file, '["recovered"]'))
        async with engine_with(configured(), [Say("half"), Wait("hold")], store=store) as (
            engine,
            model,
        ):
            await (await engine.session("alice")).send("go")
            await model.gate("hold").reached()
            store.keep_what_a_crash_leaves()
        store.come_back()
        async with engine_with(config, store=store):
            await until(lambda: learned(file))
        (notice,) = learned(file)
        assert (notice["event"], notice["outcome"]) == ("recovered", "crashed")

    async def test_a_webhook_gets_it_as_its_body(self, configured: Callable[..., Config]) -> None:
        got: list[tuple[str, dict[str, Any]]] = []

        async def take(request: web.Request) -> web.Response:
            got.append((request.headers["Authorization"], await request.json()))
            return web.Response()

        async with serving(take) as url:
            own = (
                f'[[hooks]]\non = ["settled"]\nurl = "{url}/hook"\n'
                'headers = { Authorization = "Bearer ${HOOK_TOKEN}" }\n'
            )
            config = configured(own, HOOK_TOKEN="secret")
            async with engine_with(config, [Say("Done.")]) as (engine, _):
                await completes(await engine.session("alice"), "go")
        ((token, notice),) = got
        assert token == "Bearer secret"
        assert notice["outcome"] == "completed"


class TestNothingWaits:
    async def test_a_hook_that_hangs_is_ended_and_logged_and_delays_no_turn(
        self,
        configured: Callable[..., Config],
        tmp_path: Path,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        pid = tmp_path / "pid"
        hangs = (
            f'[[hooks]]\non = ["settled"]\ntimeout_s = 0.3\n'
            f'command = "setsid sleep 1000 & echo $! > {pid}; wait"\n'
        )
        caplog.set_level(logging.WARNING, "bargein.hooks")
        answers = [[Say("Done.")]] * 3
        async with engine_with(configured(hangs), *answers) as (engine, _):
            session = await engine.session("alice")
            for number in range(3):
                await completes(session, f"go {number}")
            await until(lambda: "took longer than 0.3 s" in caplog.text)
        assert not alive(int(pid.read_text()))

    async def test_one_that_fails_is_logged(
        self, configured: Callable[..., Config], caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.WARNING, "bargein.hooks")
        fails = '[[hooks]]\non = ["settled"]\ncommand = "echo no such luck >&2; exit 3"\n'
        async with engine_with(configured(fails), [Say("Done.")]) as (engine, _):
            await completes(await engine.session("alice"), "go")
        assert "exit 3: no such luck" in caplog.text

    async def test_a_webhook_that_hangs_or_refuses_is_logged(
        self, configured: Callable[..., Config], caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.WARNING, "bargein.hooks")
        never = anyio.Event()

        async def take(request: web.Request) -> web.Response:
            if request.path == "/hangs":
                await never.wait()
            return web.Response(status=500)

        async with serving(take) as url:
            own = "".join(
                f'[[hooks]]\non = ["settled"]\nurl = "{url}/{path}"\ntimeout_s = 0.3\n'
                for path in ("hangs", "refuses")
            )
            async with engine_with(configured(own), [Say("Done.")]) as (engine, _):
                await completes(await engine.session("alice"), "go")
                await until(lambda: "took longer than" in caplog.text)
                await until(lambda: "HTTP status 500" in caplog.text)
            never.set()


class TestWhichCount:
    async def test_one_of_a_project_waits_for_approval_and_is_checked_again(
        self,
        configured: Callable[..., Config],
        tmp_path: Path,
        environment: dict[str, str],
        caplog: pytest.LogCaptureFixture,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        caplog.set_level(logging.WARNING, "bargein.hooks")
        file = tmp_path / "learned"
        script = tmp_path / "project" / "tell.sh"
        script.parent.mkdir(exist_ok=True)
        script.write_text(f"{{ cat; echo; }} >> {file}\n")
        project = '[[hooks]]\non = ["settled"]\ncommand = "sh ../project/tell.sh"\n'
        config = configured(project=project)
        assert config.hooks == ()
        (request,) = config.left_out
        assert "runs sh ../project/tell.sh" in request.shown()
        assert "tell.sh" in str(request.scripts)
        trust_file(environment).judge(request, approved=True)
        config = configured(project=project)
        assert len(config.hooks) == 1
        monkeypatch.chdir(script.parent)
        async with engine_with(config, [Say("One.")], [Say("Two.")]) as (engine, _):
            session = await engine.session("alice")
            await completes(session, "go")
            await until(lambda: learned(file))
            # The agent changes the script: what the user approved is another one.
            script.write_text("true\n")
            await completes(session, "go on")
            await until(lambda: "changed since you approved it" in caplog.text)
        assert len(learned(file)) == 1

    async def test_those_of_the_project_that_a_session_works_in_count_for_that_session(
        self,
        configured: Callable[..., Config],
        tmp_path: Path,
        environment: dict[str, str],
    ) -> None:
        """One engine, sessions in folders of their own."""
        file = tmp_path / "learned"
        project = writes(file, '["settled"]')
        (request,) = configured(project=project).left_out
        trust_file(environment).judge(request, approved=True)

        def agent_of(place: SessionPlace, lent: Any) -> PlacedAgent:
            script = ScriptedModel([[Say("Done.")]])
            config = load_config(environment, folder=Path(place.workspace))
            return PlacedAgent(Agent(model=script, workspace=place.workspace), config)

        elsewhere = tmp_path / "elsewhere"
        elsewhere.mkdir()
        engine = Engine(
            Agent(model=ScriptedModel([])),
            config=load_config(environment),
            store=MemoryStore(),
            limits=LIMITS,
            agent_of=agent_of,
        )
        async with engine:
            for name, folder in (("alice", tmp_path / "project"), ("bob", elsewhere)):
                session = await engine.session(name)
                await session.set_place(SessionPlace(str(folder)))
                await completes(session, "go")
        assert [notice["session"] for notice in learned(file)] == ["alice"]

    @pytest.mark.parametrize(
        ("own", "why"),
        [
            ('[[hooks]]\non = ["settled"]\n', "either a command or a url"),
            ('[[hooks]]\ncommand = "x"\n', "say what a hook is for"),
            ('[[hooks]]\non = ["never"]\ncommand = "x"\n', "is not valid"),
            ('[[hooks]]\non = ["settled"]\ncommand = "x"\ntimeout_s = 1000\n', "at most 60"),
            ('[[hooks]]\non = ["settled"]\nurl = "ftp://x"\n', "no address"),
            ('[[hooks]]\non = ["settled"]\nurl = "http://x/${NOT_SET}"\n', "NOT_SET"),
            ('[hooks]\non = "settled"\n', "a table of its own"),
            ('[[hooks]]\non = ["settled"]\ncommand = "x"\nwhen = 1\n', "there is no 'when'"),
        ],
    )
    async def test_mistakes_are_named(
        self, configured: Callable[..., Config], own: str, why: str
    ) -> None:
        with pytest.raises(UserError, match=why):
            configured(own)


class Abrupt(MemoryStore):
    """A store from which a program can vanish: what it writes after that is lost."""

    def __init__(self) -> None:
        super().__init__()
        self._gone = False

    def keep_what_a_crash_leaves(self) -> None:
        self._gone = True

    def come_back(self) -> None:
        self._gone = False

    async def commit_one(self, commit: Any) -> None:
        if not self._gone:
            await super().commit_one(commit)


def alive(pid: int) -> bool:
    """A process that has ended and waits to be collected is not alive."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


@asynccontextmanager
async def serving(take: Callable[[web.Request], Any]) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_post("/{path:.*}", take)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        await runner.cleanup()


async def test_a_hook_that_fails_in_a_new_way_keeps_no_other_from_running(
    tmp_path: Path, configured: Callable[..., Config], caplog: pytest.LogCaptureFixture
) -> None:
    """aiohttp refuses a header with a newline by ValueError, whose words have the header."""
    file = tmp_path / "learned"
    bad = """
[[hooks]]
on = ["settled"]
url = "http://127.0.0.1:1/${SECRET}"
headers = { Authorization = "Bearer ${KEY}" }
"""
    config = configured(own=bad + writes(file, '["settled"]'), SECRET="path-3f1", KEY="key-9c2\n")
    with caplog.at_level(logging.WARNING, "bargein.hooks"):
        async with engine_with(config, [Say("a")]) as (engine, _):
            session = await engine.session("s")
            await completes(session, "1")
            await until(lambda: bool(learned(file)))
    assert "http://127.0.0.1 (" in caplog.text
    assert "path-3f1" not in caplog.text
    assert "key-9c2" not in caplog.text


async def test_a_webhook_that_nobody_answers_is_logged_without_its_path(
    configured: Callable[..., Config], caplog: pytest.LogCaptureFixture
) -> None:
    own = '[[hooks]]\non = ["settled"]\nurl = "http://127.0.0.1:1/hooks/${SECRET}"\n'
    config = configured(own=own, SECRET="path-3f1")
    with caplog.at_level(logging.WARNING, "bargein.hooks"):
        async with engine_with(config, [Say("a")]) as (engine, _):
            await completes(await engine.session("s"), "1")
    assert "failed" in caplog.text
    assert "path-3f1" not in caplog.text
