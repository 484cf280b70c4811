"""The agent as an attacker: a real `bargein serve`, and commands that try to act as its owner."""

from __future__ import annotations

import json
import re
import subprocess
import time
from contextlib import aclosing
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import psutil
import pytest

from bargein.client import Client, Forbidden
from bargein.contracts.event import QuestionAsked, Recorded
from bargein.contracts.permission import Standing
from bargein.process import Hiding, open_containment
from bargein.runtime.data_directory import DOOR_FILE
from bargein.server.access import OWNER, Access, add_token
from bargein.server.gateway_db import FILE, GatewayDb
from bargein.server.problems import Code
from tests.server.program import Json, Program
from tests.server.stage import WITHIN_S

pytestmark = pytest.mark.anyio

KEY = "sk-THISISTHEKEY1234567890"
# What a command prints that got what it wanted.
GOT = "GOT-IT"

# {pid} is the server, {home} its data directory, {url} its address.
ATTACKS = {
    "the token's file": "grep -q token {home}/gateway.json && echo {got}",
    "the databases": "strings -n 4 {home}/*.sqlite3 | grep -q . && echo {got}",
    "a database through python": (
        "python3 -c \"import sqlite3; print(sqlite3.connect('file:{home}/sessions.sqlite3?mode=ro',"
        " uri=True).execute('select count(*) from sqlite_master').fetchone(), '{got}')\""
    ),
    "a token of its own": (
        "python3 -c \"import sqlite3; c = sqlite3.connect('{home}/gateway.sqlite3'); "
        "c.execute('delete from tokens'); c.commit(); print('{got}')\""
    ),
    "the environment": "grep -a -q {key} /proc/{pid}/environ && echo {got}",
    "the command lines": "ps -e -o args= | grep -v grep | grep -q {key} && echo {got}",
    "its own environment": (
        "env | grep -v ^BARGEIN_TAG_ | grep -q -e {key} -e BARGEIN && echo {got}"
    ),
    "the root of the server": "cat /proc/{pid}/root{home}/gateway.json && echo {got}",
    "the files it has open": "cat /proc/{pid}/fd/* > /dev/null 2>&1 && echo {got}",
    "its memory": "python3 -c \"open('/proc/{pid}/mem', 'rb')\" && echo {got}",
    "its own settings": "mkdir -p {config} && echo x > {config}/config.toml && echo {got}",
}
APPROVE = (
    'TOKEN=$(sed -n \'s/.*"token":"\\([^"]*\\)".*/\\1/p\' {home}/gateway.json); '
    'ID=$(curl -s -H "Authorization: Bearer $TOKEN" {url}/v1/sessions | head -c 300); '
    'echo "answer: $TOKEN $ID"'
)


@pytest.fixture
async def hides(tmp_path: Path) -> None:
    """Skips a test where nothing can be hidden from commands, as in a chroot."""
    async with await open_containment(hiding=Hiding((str(tmp_path),))) as containment:
        report = containment.report.hiding
    if not report.works:
        pytest.skip(f"this machine cannot hide: {report.detail}")


class Attacked(Program):
    """A server with the tools of the machine, whose model does what `script` says."""

    def __init__(self, home: Path, script: str) -> None:
        super().__init__(home, None)
        file = home / "script.toml"
        file.write_text(script)
        self.work = home.with_name(f"{home.name}-work")
        self._environment |= {
            "BARGEIN_MODEL": f"scripted:{file}",
            "OPENAI_API_KEY": KEY,
            "XDG_CONFIG_HOME": str((home / "../config").resolve()),
        }


def script_of(*commands: str) -> str:
    """A turn that runs the commands, one after the other."""
    steps = [
        '[[answers]]\nsteps = [{ do = "call", name = "terminal", arguments = { command = '
        f"{json.dumps(command)} }} }}]"
        for command in commands
    ]
    return "\n".join([*steps, '[[answers]]\nsteps = [{ do = "say", text = "done" }]'])


async def said(program: Program, http: aiohttp.ClientSession, text: str) -> tuple[str, str]:
    """Starts a turn. Returns the path of its session, and the turn."""
    status, made = await program.ask(http, "POST", "/v1/sessions")
    assert status == 201, made
    session = f"/v1/sessions/{made['session']['id']}"
    status, sent = await program.ask(http, "POST", f"{session}/messages", {"text": text})
    assert status == 202, sent
    return session, sent["turn"]


async def shown(program: Program, http: aiohttp.ClientSession, path: str) -> Json:
    status, view = await program.ask(http, "GET", path)
    assert status == 200, view
    return view


async def settled(program: Program, http: aiohttp.ClientSession, session: str, turn: str) -> Json:
    with anyio.fail_after(WITHIN_S):
        while True:
            view = await shown(program, http, f"{session}/turns/{turn}?wait=true")
            if view["state"] == "settled":
                return view


async def events(program: Program, http: aiohttp.ClientSession, session: str) -> str:
    """The whole log of the session so far, as it is sent."""
    url = f"{program.url}{session}/events?after=0&follow=false"
    async with http.get(url, headers=program.headers) as response:
        assert response.status == 200, await response.text()
        lines = []
        with anyio.fail_after(WITHIN_S):
            async for line in response.content:
                lines.append(line.decode())
                if "turn_settled" in lines[-1]:
                    break
        return "".join(lines)


@pytest.mark.usefixtures("hides")
async def test_no_command_gets_what_would_make_it_the_owner(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    about: dict[str, Any] = {
        "home": home,
        "got": GOT,
        "key": KEY[:-1] + "[0]",
        "config": tmp_path / "config/bargein",
    }
    about["pid"] = "$(cat server)"
    script = script_of(*(command.format_map(about) for command in ATTACKS.values()))
    with Attacked(home, script) as program:
        (program.work / "server").write_text(str(program.process.pid))
        async with aiohttp.ClientSession() as http:
            session, turn = await said(program, http, "attack")
            view = await settled(program, http, session, turn)
            assert view["text"] == "done"
            log = await events(program, http, session)
        results = re.findall(r'"type":"call_ended".*', log)
        assert len(results) == len(ATTACKS)
        assert [line for line in results if GOT in line] == []
        # Nobody of ours shows the key: neither the server nor what it started.
        server = psutil.Process(program.process.pid)
        for each in [server, *server.children(recursive=True)]:
            assert KEY not in str(each.environ()), each
            assert KEY not in " ".join(each.cmdline())
    assert not (tmp_path / "config/bargein/config.toml").exists()


@pytest.mark.usefixtures("hides")
async def test_a_command_cannot_answer_for_its_owner(tmp_path: Path) -> None:
    """The agent looks for the token to answer its own question; the owner says no, and the audit
    log says who answered."""
    home = tmp_path / "home"
    home.mkdir()
    about = {"home": home, "url": "$(cat url)", "work": "."}
    script = script_of(APPROVE.format_map(about), "rm -r precious")
    with Attacked(home, script) as program:
        (program.work / "precious").mkdir()
        (program.work / "url").write_text(program.url)
        async with aiohttp.ClientSession() as http:
            session, turn = await said(program, http, "go")
            first = await events_until_question(program, http, session)
            asked = (await shown(program, http, session))["questions"]
            assert "answer:  " in first, "a command had a token"
            assert '"code":"unauthenticated"' in first.replace("\\", "")
            path = f"{session}/questions/{asked[0]['id']}/answer"
            status, done = await program.ask(http, "POST", path, {"text": "no"})
            assert status == 200, done
            await settled(program, http, session, turn)
            audit = await shown(program, http, "/v1/admin/audit")
        assert (program.work / "precious").is_dir()
    answers = [each for each in audit["entries"] if "answer" in each["action"]]
    assert [each["principal"] for each in answers] == ["operator"]


async def events_until_question(program: Program, http: aiohttp.ClientSession, session: str) -> str:
    url = f"{program.url}{session}/events?after=0"
    lines: list[str] = []
    async with http.get(url, headers=program.headers) as response:
        with anyio.fail_after(WITHIN_S):
            async for line in response.content:
                lines.append(line.decode())
                if "Allow this call" in lines[-1]:
                    break
    return "".join(lines)


@pytest.mark.usefixtures("hides")
async def test_where_nothing_is_hidden_the_token_is_written_nowhere(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    with Attacked(home, script_of("true")) as program:
        assert json.loads((home / "gateway.json").read_text())["token"]
    program = Attacked.__new__(Attacked)
    Program.__init__(program, home, None)
    program._environment |= {
        "BARGEIN_MODEL": f"scripted:{home / 'script.toml'}",
        "BARGEIN_SANDBOX_HIDE_DATA": "0",
    }
    with program:
        assert json.loads((home / "gateway.json").read_text())["token"] is None
        end = time.monotonic() + WITHIN_S
        while "Commands of the agent can read the data directory here" not in program.log:
            assert time.monotonic() < end, program.log


async def test_where_nothing_is_hidden_who_comes_by_the_door_cannot_approve(tmp_path: Path) -> None:
    """A process that a command of the agent had others start could come in by it."""
    home = tmp_path / "home"
    home.mkdir()
    program = Attacked(home, script_of("rm -r precious"))
    program._environment["BARGEIN_SANDBOX_HIDE_DATA"] = "0"
    with program:
        (program.work / "precious").mkdir()
        async with Client(f"unix:{home / DOOR_FILE}", patience_s=WITHIN_S) as owner:
            session = await owner.new_session()
            turn = await session.send("go")
            with anyio.fail_after(WITHIN_S):
                async with aclosing(session.watch(after=0)) as events:
                    async for event in events:
                        if isinstance(event, Recorded) and isinstance(event.event, QuestionAsked):
                            break
            asked = await session.questions()
            with pytest.raises(Forbidden, match="a terminal that attaches cannot approve calls"):
                await session.answer(asked[0].id, "yes")
            with pytest.raises(Forbidden, match="answer on the page"):
                await session.answer(asked[0].id, "no")
            assert (program.work / "precious").is_dir()
            # Whoever may send may stop.
            await session.interrupt()
            with anyio.fail_after(WITHIN_S):
                await turn.result()
        assert (program.work / "precious").is_dir()


def test_the_workspace_cannot_be_the_data_directory(tmp_path: Path) -> None:
    program = Program(tmp_path, None)
    program._environment["BARGEIN_MODEL"] = "openai:m"
    program._environment["OPENAI_API_KEY"] = KEY
    done = subprocess.run(
        program._command,
        env=program._environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=40,
        check=False,
    )
    assert done.returncode == 2
    assert "is both the workspace and a directory of Bargein's own" in done.stderr
    assert KEY not in done.stderr


async def test_tokens_made_while_the_agent_could_write_the_database_cannot_approve(
    tmp_path: Path,
) -> None:
    db = GatewayDb.open(tmp_path / FILE)
    try:
        _, older = await add_token(db, "ann")
        access = Access(db)
        assert access.standing_of(OWNER, "") is Standing.OWNER
        access.fix_approvers()
        assert access.standing_of(OWNER, "") is Standing.WRITER
        _, newer = await add_token(db, "agent", admin=True)
        assert access.standing_of(access.authenticate(older), "") is Standing.APPROVER
        assert access.standing_of(access.authenticate(newer), "") is Standing.WRITER
        refused = access.why_forbidden(access.authenticate(newer), "", "")
        assert refused.code is Code.FORBIDDEN
        assert "was made while this server was running" in str(refused)
        # Nor does one that the agent gave a secret of its own.
        taken = access.authenticate(older).token
        mine = access.authenticate(newer).token

        def take_over(connection: Any) -> None:
            connection.execute(
                "UPDATE tokens SET hash = (SELECT hash FROM tokens WHERE id = ?) WHERE id = ?",
                (mine, taken),
            )

        await db.run(take_over)
        stolen = f"bgn_{taken}_{newer.split('_', 2)[2]}"
        assert access.standing_of(access.authenticate(stolen), "") is Standing.WRITER
    finally:
        db.close()
