"""The program as a user runs it: its end, its restart, and what a kill leaves."""

import json
import os
import re
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import aiohttp
import anyio
import anyio.to_thread
import msgspec
import pytest

from bargein.contracts.model import EndPart, StopReason, TextPart
from bargein.server.limits import GatewayLimits
from bargein.testing.fault_answers import events_of
from bargein.testing.fault_server import FaultServer
from bargein.testing.fault_steps import Body, Gate, Head, Reply
from tests.cli.screen import CTRL_C, Screen
from tests.server.program import MAIN, Json, Program
from tests.server.stage import WITHIN_S
from tests.session.world import until

pytestmark = pytest.mark.anyio

COUNTING = """
repeat = true
[[answers]]
when = "quick"
steps = [{ do = "say", text = "done" }]
[[answers]]
steps = [{ do = "say", text = "for ever " }, { do = "pause", seconds = 600.0 }]
"""

END = EndPart(StopReason.END)
QUICK = """
repeat = true
[[answers]]
steps = [{ do = "say", text = "done" }]
"""


async def ended(program: Program, within_s: float) -> int:
    return await anyio.to_thread.run_sync(program.process.wait, within_s)


async def new_session(program: Program, http: aiohttp.ClientSession) -> str:
    status, made = await program.ask(http, "POST", "/v1/sessions")
    assert status == 201, made
    return f"/v1/sessions/{made['session']['id']}"


async def until_refusing(program: Program, http: aiohttp.ClientSession) -> None:
    with anyio.fail_after(WITHIN_S):
        while await status_of(program, http, "/readyz") != 503:
            pass


async def until_served(program: Program, http: aiohttp.ClientSession) -> None:
    with anyio.fail_after(WITHIN_S):
        while await status_of(program, http, "/healthz") != 200:
            pass
    assert await status_of(program, http, "/readyz") == 200


async def status_of(program: Program, http: aiohttp.ClientSession, path: str) -> int:
    async with http.get(program.url + path) as response:
        await response.read()
        return response.status


async def settled(program: Program, http: aiohttp.ClientSession, path: str, turn: str) -> Json:
    with anyio.fail_after(WITHIN_S):
        while True:
            status, view = await program.ask(http, "GET", f"{path}/turns/{turn}?wait=true")
            if status == 200 and view["state"] == "settled":
                return view
            await anyio.sleep(0.02)


async def test_sigterm_refuses_new_work_lets_turns_end_and_keeps_what_waits(
    tmp_path: Path,
) -> None:
    """The running turn ends when the model may go on, however long that takes."""
    begin, *rest = events_of("openai", [TextPart("seven "), TextPart("eight"), END])
    slow: Reply = [Head(), Body(begin), Body(rest[0]), Gate("rest"), Body(b"".join(rest[1:]))]
    async with FaultServer([slow]) as model, aiohttp.ClientSession() as http:
        with Program(tmp_path, None, "--drain", "50", model_url=model.url) as program:
            session = await new_session(program, http)
            status, sent = await program.ask(http, "POST", f"{session}/messages", {"text": "slow"})
            assert status == 202
            body = {"text": "quick", "mode": "queue"}
            _, queued = await program.ask(http, "POST", f"{session}/messages", body)
            program.terminate()
            refused: Json = {}
            with anyio.fail_after(WITHIN_S):
                while refused.get("code") != "shutting_down":
                    status, refused = await program.ask(
                        http, "POST", f"{session}/messages", {"text": "late", "mode": "queue"}
                    )
            assert status == 503
            assert await status_of(program, http, "/readyz") == 503
            assert await status_of(program, http, "/healthz") == 200
            model.gate("rest").set()
            assert await ended(program, WITHIN_S) == 0
            assert "shutting down" in program.log
            assert not (tmp_path / "gateway.json").exists()
        with Program(tmp_path, COUNTING) as program:
            # What was running has come to its end; what waited is answered by the next life.
            first = await settled(program, http, session, sent["turn"])
            assert (first["outcome"], first["text"][-5:]) == ("completed", "eight")
            second = await settled(program, http, session, "t2")
            assert second["messages"] == [queued["message"]]
            assert second["outcome"] == "completed"


async def test_turns_that_outlive_the_drain_time_are_stopped(tmp_path: Path) -> None:
    async with aiohttp.ClientSession() as http:
        with Program(tmp_path, COUNTING, "--drain", "0.3") as program:
            session = await new_session(program, http)
            await program.ask(http, "POST", f"{session}/messages", {"text": "count"})
            async with http.get(
                f"{program.url}{session}/events?after=0", headers=program.headers
            ) as events:
                while b"ever " not in await events.content.readline():
                    pass
                # Less than the drain time of one who gives none.
                with anyio.fail_after(GatewayLimits().drain_s - 2):
                    program.terminate()
                    told = (await events.read()).decode()
                    assert await ended(program, WITHIN_S) == 0
            assert '"reason":"shutting_down"' in told
        with Program(tmp_path, COUNTING) as program:
            view = await settled(program, http, session, "t1")
            assert (view["outcome"], view["text"]) == ("stopped", "for ever ")
            assert view["receipt"]["reason"]["cause"] == "shutdown"


async def test_a_second_signal_skips_the_rest_of_the_drain_time(tmp_path: Path) -> None:
    async with aiohttp.ClientSession() as http:
        with Program(tmp_path, COUNTING, "--drain", "60") as program:
            session = await new_session(program, http)
            await program.ask(http, "POST", f"{session}/messages", {"text": "for ever"})
            program.terminate()
            await until_refusing(program, http)
            # While it drains a stop is never refused; here nobody asks, so a second signal comes.
            program.process.send_signal(signal.SIGINT)
            assert await ended(program, WITHIN_S) == 0


@pytest.mark.parametrize("ignored", [signal.SIGHUP, signal.SIGINT])
async def test_a_signal_that_was_ignored_at_its_start_stays_so(
    tmp_path: Path, ignored: signal.Signals
) -> None:
    """By `nohup`, which has SIGHUP ignored, or by an `&` in a script, which has SIGINT ignored."""
    before = signal.signal(ignored, signal.SIG_IGN)
    try:
        async with aiohttp.ClientSession() as http:
            with Program(tmp_path, QUICK) as program:
                program.process.send_signal(ignored)
                await until_served(program, http)
                # Heard after the other one.
                program.terminate()
                assert await ended(program, WITHIN_S) == 0
                assert program.log.count("shutting down") == 1
    finally:
        signal.signal(ignored, before)


async def test_ctrl_c_held_down_ends_it_without_a_word(tmp_path: Path) -> None:
    """At any point: draining, closing its connections, closing the engine, at its very end. Drained
    or not, it only says that it leaves."""
    for pause_s in (0.001, 0.02, 0.08):
        with Program(tmp_path, QUICK) as program:
            while program.process.poll() is None:
                program.process.send_signal(signal.SIGINT)
                await anyio.sleep(pause_s)
            # At its very end Python has taken its handlers back, and the signal itself ends it.
            assert program.process.returncode in (0, 130, -signal.SIGINT)
            said = [each for each in program.log.splitlines() if not each.startswith("{")]
            known = ("Bargein is at ", "Its token is in ")
            assert all(each.startswith(known) for each in said), program.log


async def test_kill_9_under_load_loses_no_acknowledged_message(tmp_path: Path) -> None:
    """Many clients send as fast as they can; the server is killed, started again, killed again.
    Each counts what was acknowledged. Afterwards each of those is in the log exactly once, and
    has been taken by exactly one turn."""
    acknowledged: dict[str, set[str]] = {}
    sessions: list[str] = []
    lives = 3
    for life in range(lives):
        with Program(tmp_path, QUICK) as program:
            async with aiohttp.ClientSession() as http:
                if not sessions:
                    sessions = [await new_session(program, http) for _ in range(8)]
                    acknowledged.update({each: set() for each in sessions})
                async with anyio.create_task_group() as group:
                    for number, session in enumerate(sessions):
                        group.start_soon(
                            load, program, http, session, f"{life}-{number}", acknowledged[session]
                        )
                    before = sum(map(len, acknowledged.values()))
                    goal = before + 150
                    await until(partial(reached, acknowledged, goal))
                    program.kill()
                    group.cancel_scope.cancel()
    with Program(tmp_path, QUICK) as program:
        async with aiohttp.ClientSession() as http:
            for session in sessions:
                await until_idle(program, http, session)
                check(await log(program, http, session), acknowledged[session])
    assert sum(map(len, acknowledged.values())) >= 150 * lives


def reached(acknowledged: dict[str, set[str]], goal: int) -> bool:
    return sum(map(len, acknowledged.values())) >= goal


async def load(
    program: Program, http: aiohttp.ClientSession, session: str, name: str, told: set[str]
) -> None:
    number = 0
    while True:
        number += 1
        client_id = f"{name}-{number}"
        body = {"text": f"quick {client_id}", "mode": "queue", "client_message_id": client_id}
        try:
            status, _ = await program.ask(http, "POST", f"{session}/messages", body)
        except (aiohttp.ClientError, OSError):
            return
        if status in (200, 202):
            told.add(client_id)


async def until_idle(program: Program, http: aiohttp.ClientSession, session: str) -> None:
    with anyio.fail_after(40):
        while True:
            _, view = await program.ask(http, "GET", session)
            if view["session"]["phase"] == "idle" and not view["session"]["waiting"]:
                return
            await anyio.sleep(0.05)


async def log(program: Program, http: aiohttp.ClientSession, session: str) -> list[Json]:
    found: list[Json] = []
    _, view = await program.ask(http, "GET", session)
    last = view["session"]["last_seq"]
    async with http.get(
        f"{program.url}{session}/events?after=0", headers=program.headers
    ) as response:
        while not found or found[-1]["seq"] < last:
            line = await response.content.readline()
            if line.startswith(b"data: "):
                event = msgspec.json.decode(line[6:], type=Json)
                if "seq" in event:
                    found.append(event)
    return found


def check(events: list[Json], acknowledged: set[str]) -> None:
    assert [each["seq"] for each in events] == list(range(1, len(events) + 1))
    accepted: dict[str, str] = {}
    taken: list[str] = []
    for each in events:
        event = each["event"]
        if event["type"] == "message_accepted":
            client_id = event["message"]["client_id"]
            assert client_id not in accepted, "accepted twice"
            accepted[client_id] = event["message"]["id"]
        elif event["type"] in ("turn_started", "messages_taken"):
            taken += event["messages"]
    assert acknowledged <= set(accepted), "an acknowledged message is lost"
    assert len(taken) == len(set(taken)), "taken twice"
    assert set(taken) == set(accepted.values()), "accepted and never taken"


def run(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "BARGEIN_HOME": str(home)}
    return subprocess.run(
        [sys.executable, "-c", MAIN, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )


def test_it_refuses_to_listen_elsewhere_without_tokens(tmp_path: Path) -> None:
    done = run(tmp_path, "serve", "--host", "0.0.0.0", "--port", "0")
    assert done.returncode == 2
    assert "bargein token add" in done.stderr


def test_a_file_that_it_cannot_write_is_told_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "script.toml").write_text(QUICK)
    (tmp_path / "gateway.json").mkdir()
    done = run(tmp_path, "serve", "--port", "0", "--scripted", str(tmp_path / "script.toml"))
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == (
        f"bargein serve: {tmp_path / 'gateway.json'} cannot be written: Is a directory; "
        "remove it, or set BARGEIN_HOME to another directory"
    )
    assert "Traceback" not in done.stderr


def test_a_second_server_is_told_of_the_first_and_not_only_of_its_port(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    with Program(tmp_path, COUNTING) as program:
        port = program.url.rpartition(":")[2]
        again = run(tmp_path, "serve", "--port", port)
        assert (again.returncode, again.stderr.count("\n")) == (2, 1)
        assert f"is in use by process {program.process.pid}" in again.stderr
        assert f"open {program.url}/ in a browser" in again.stderr
        # The output of a program that is not in a terminal is mostly a log.
        path = tmp_path / "gateway.json"
        assert f"Its token is in {path}, which only this user can read" in again.stderr
        assert json.loads(path.read_bytes())["token"] not in again.stderr
        other = run(elsewhere, "serve", "--port", port)
        assert (other.returncode, other.stderr.count("\n")) == (2, 1)
        assert f"cannot listen on 127.0.0.1, port {port}" in other.stderr


def test_tokens_are_added_listed_and_revoked(tmp_path: Path) -> None:
    added = run(tmp_path, "token", "add", "alice", "--days", "1", "--read-only", "--note", "phone")
    token = added.stdout.strip()
    assert token.startswith("bgn_")
    listed = run(tmp_path, "token", "list").stdout
    assert "alice" in listed
    assert "read-only" in listed
    assert token not in listed
    token_id = token.split("_")[1]
    assert run(tmp_path, "token", "revoke", token_id).returncode == 0
    assert "revoked" in run(tmp_path, "token", "list").stdout
    again = run(tmp_path, "token", "revoke", token_id)
    assert (again.returncode, "no valid token" in again.stderr) == (2, True)
    for days in ("-1", "0", "nan", "a", "40000"):
        wrong = run(tmp_path, "token", "add", "alice", f"--days={days}")
        assert wrong.returncode == 2
        assert f"{days!r} is not a number of days: give more than 0, at most 36500" in wrong.stderr


def test_a_token_for_a_session_that_is_not_there_is_made_with_a_warning(tmp_path: Path) -> None:
    async def make() -> str:
        async with aiohttp.ClientSession() as http:
            return (await new_session(program, http)).rpartition("/")[2]

    early = run(tmp_path, "token", "add", "alice", "--session", "nope")
    assert (early.returncode, early.stdout[:4]) == (0, "bgn_")
    assert "there is no session 'nope' yet" in early.stderr
    token_id = early.stdout.split("_")[1]
    assert run(tmp_path, "token", "revoke", token_id).returncode == 0
    with Program(tmp_path, QUICK) as program:
        session = anyio.run(make)
        added = run(tmp_path, "token", "add", "alice", "--session", session, "--session", "nope")
    assert (added.returncode, added.stdout[:4]) == (0, "bgn_"), added.stderr
    assert added.stderr.count("there is no session") == 1
    assert "there is no session 'nope' yet" in added.stderr


def test_a_token_that_the_running_server_will_not_let_in_says_so(tmp_path: Path) -> None:
    """It was started for one principal, who has the tools of the machine."""
    (tmp_path / "script.toml").write_text(QUICK)
    model = ("--model", f"scripted:{tmp_path / 'script.toml'}")
    with Program(tmp_path, None, *model):
        added = run(tmp_path, "token", "add", "alice")
        assert "was started for operator alone; restart it to let alice in" in added.stderr
    assert "restart" not in run(tmp_path, "token", "add", "alice").stderr
    with Program(tmp_path, None, *model) as program:
        assert "restart" not in run(tmp_path, "token", "add", "alice").stderr
        assert "was started for alice alone" in run(tmp_path, "token", "add", "bob").stderr
        assert "the tools of this machine" not in program.log
    with Program(tmp_path, None, *model) as program:
        assert "restart" not in run(tmp_path, "token", "add", "carol").stderr
        told = program.log.rpartition("Bargein is at ")[2].splitlines()[2]
    assert "2 principals have tokens" in told
    assert "a folder" in told
    assert "--let-everyone-run-commands-on-this-machine" in told


def test_with_tokens_it_says_that_one_is_needed_and_all_else_is_its_log(tmp_path: Path) -> None:
    run(tmp_path, "token", "add", "alice")
    with Program(tmp_path, QUICK) as program:
        program.terminate()
        assert program.process.wait(WITHIN_S) == 0
        where, how, *log = program.log.splitlines()
    assert where == f"Bargein is at {program.url}/"
    assert how == "It asks for a token: one that you have, or a new one by  bargein token add NAME"
    entries = [msgspec.json.decode(line, type=Json) for line in log]
    assert "shutting down: turns may go on for 20 s" in [each["event"] for each in entries]


def test_its_log_has_ids_and_no_secret(tmp_path: Path) -> None:
    async def talk() -> str:
        async with aiohttp.ClientSession() as http:
            session = await new_session(program, http)
            await program.ask(http, "POST", f"{session}/messages", {"text": "quick secretword"})
            await status_of(program, http, f"/v1/me?token={program.headers['authorization'][7:]}")
            return session

    with Program(tmp_path, COUNTING) as program:
        session = anyio.run(talk)
        token = program.headers["authorization"][7:]
        program.terminate()
        program.process.wait(WITHIN_S)
        where, how, *lines = program.log.splitlines()
    assert where == f"Bargein is at {program.url}/"
    assert how == f"Its token is in {tmp_path / 'gateway.json'}, which only this user can read"
    entries = [msgspec.json.decode(each, type=Json) for each in lines]
    sent = next(each for each in entries if each["event"] == "send_message")
    assert (sent["session"], sent["status"]) == (session.rpartition("/")[2], 202)
    assert all(each["request"] for each in entries if "status" in each)
    told = "\n".join([where, how, *lines])
    assert token not in told
    assert "secretword" not in told


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ([], ("127.0.0.1", False)),
        (["--trusted-proxy", "10.0.0.0/8"], ("127.0.0.1", False)),
        (["--trusted-proxy", "10.0.0.0/8", "--trusted-proxy", "127.0.0.1"], ("203.0.113.9", True)),
        (["--trusted-proxy", "127.0.0.1", "--proxy-header", "forwarded"], ("203.0.113.7", True)),
    ],
)
async def test_a_proxy_is_believed_if_the_command_line_names_it(
    tmp_path: Path, flags: list[str], expected: tuple[str, bool]
) -> None:
    told = {
        "x-request-id": "proxys-1",
        "x-forwarded-for": "203.0.113.9",
        "forwarded": "for=203.0.113.7",
    }
    with Program(tmp_path, QUICK, *flags) as program:
        async with aiohttp.ClientSession(headers=told) as http:
            async with http.post(
                f"{program.url}/v1/sessions",
                data=b"{}",
                headers={**program.headers, "content-type": "application/json"},
            ) as response:
                assert response.status == 201
                number = response.headers["x-request-id"]
            _, audit = await program.ask(http, "GET", "/v1/admin/audit")
    (made,) = [each for each in audit["entries"] if each["action"] == "create_session"]
    assert (made["address"], number == "proxys-1") == expected


async def test_failures_of_the_provider_are_in_the_log_of_the_program(tmp_path: Path) -> None:
    refused: Reply = [Head(status=401), Body(b'{"error": {"message": "no such account"}}')]
    async with FaultServer([refused] * 4) as model, aiohttp.ClientSession() as http:
        with Program(tmp_path, None, model_url=model.url) as program:
            session = await new_session(program, http)
            _, sent = await program.ask(http, "POST", f"{session}/messages", {"text": "hello"})
            turn = await settled(program, http, session, sent["turn"])
            assert turn["outcome"] == "failed"
            program.terminate()
            assert await ended(program, WITHIN_S) == 0
            entries = [
                msgspec.json.decode(line, type=Json)
                for line in program.log.splitlines()
                if line.startswith("{")
            ]
    (failed,) = [each for each in entries if each["event"].startswith("a turn failed")]
    assert failed["level"] == "warning"
    assert (failed["session"], failed["turn"]) == (session.rpartition("/")[2], sent["turn"])


def test_in_a_terminal_its_address_stays_in_sight(tmp_path: Path) -> None:
    """Requests are logged only to files and pipes, however many there are. The rest of the log is
    in words, because a person reads it."""

    async def look(url: str) -> None:
        address, _, token = url.partition("#token=")
        headers = {"authorization": f"Bearer {token}"}
        async with aiohttp.ClientSession(headers=headers) as http:
            for path in ("v1/sessions", "v1/sessions/nobodys") * 20:
                async with http.get(address + path) as response:
                    await response.read()
            async with http.get(address, headers={"authorization": "Bearer wrong"}) as response:
                await response.read()

    screen = Screen("serve", "--port", "0", home=tmp_path, script=QUICK)
    try:
        screen.wait_until(lambda: re.search(r"token=[\w-]{43}", screen.text) is not None, "it")
        url = screen.text.partition("Bargein is at ")[2].split()[0]
        anyio.run(look, url)
        screen.type(CTRL_C)
        screen.wait_for("shutting down: turns may go on for 20 s")
        assert screen.exit_code() == 0
        assert f"Bargein is at {url}" in screen.text
        assert len(screen.text.splitlines()) < 8
        assert "{" not in screen.text
    finally:
        screen.close()


def test_the_server_looks_for_garbage_less_often_than_is_usual() -> None:
    code = (
        "import gc; from bargein.server.running import collect_seldom\n"
        "def passes():\n"
        "    before = sum(each['collections'] for each in gc.get_stats())\n"
        "    kept = [[] for _ in range(50_000)]\n"
        "    return sum(each['collections'] for each in gc.get_stats()) - before\n"
        "usual = passes(); collect_seldom(); print(usual, passes())"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    usual, ours = map(int, run.stdout.split())
    assert 0 < ours < usual / 5
