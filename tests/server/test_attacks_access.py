"""Somebody tries to get at what is not theirs: with a bound token, a revoked one, a share that was
taken back, a key that was used, an address that was sent to them."""

from pathlib import Path

import anyio
import pytest

from bargein.models.script import Say, Step, Wait
from bargein.server import gateway
from tests.server.stage import WITHIN_S, Stage, serving
from tests.server.test_socket import talking

pytestmark = pytest.mark.anyio

HOLD: list[Step] = [Say("One "), Wait("hold"), Say("two.")]


async def running(stage: Stage, token: str) -> str:
    session = await stage.new_session(token=token)
    await stage.post(f"{session}/messages", {"text": "count"}, token=token)
    await stage.model.gate("hold").reached()
    return session


async def test_an_admin_token_for_one_session_is_none_for_the_others(tmp_path: Path) -> None:
    async with serving([HOLD], tmp_path, start_token=None) as stage:
        alice = await stage.person("alice")
        session = await running(stage, alice)
        other = await stage.new_session(token=alice)
        bound = await stage.person("root", admin=True, sessions=(other.rpartition("/")[2],))
        await stage.get(other, token=bound)
        for method, path, body in (
            ("GET", "/v1/admin/running", None),
            ("GET", "/v1/admin/audit", None),
            ("GET", "/metrics", None),
            ("POST", "/v1/admin/stop", {}),
            ("POST", "/v1/admin/stop", {"sessions": [session.rpartition("/")[2]]}),
        ):
            status, answer = await stage.ask(method, path, body, token=bound)
            assert (status, answer["code"]) == (403, "forbidden"), path
        assert (await stage.get(session, token=alice))["session"]["phase"] == "running"


async def test_a_command_on_a_socket_with_a_revoked_token_does_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the bell, the socket is closed a moment later; no command may slip in before."""
    monkeypatch.setattr(gateway, "LOOK_EVERY_S", 3600.0)
    async with serving([HOLD], tmp_path, start_token=None) as stage:
        alice = await stage.person("alice")
        session = await running(stage, alice)
        async with talking(stage, session, token=alice) as talker:
            await stage.db.run(
                lambda connection: connection.execute("UPDATE tokens SET revoked_at = 1").rowcount
            )
            await talker.say("1", "interrupt")
            assert (await talker.reply("1"))["status"] == 401
        again = await stage.person("alice")
        assert (await stage.get(session, token=again))["session"]["phase"] == "running"


async def test_whoever_is_no_longer_shared_with_sees_nothing_more(tmp_path: Path) -> None:
    async with serving([HOLD], tmp_path, start_token=None) as stage:
        alice, bob = await stage.person("alice"), await stage.person("bob")
        session = await running(stage, alice)
        members = {"members": {"bob": "write", "carol": "read"}}
        assert (await stage.ask("PATCH", session, members, token=alice))[0] == 200
        carol = await stage.person("carol")
        waited: list[int] = []

        async def wait() -> None:
            path = f"{session}/turns/t1?wait=true"
            waited.append((await stage.ask("GET", path, token=bob))[0])

        async with (
            stage.events(f"{session}/events", token=bob) as seen,
            stage.events(f"{session}/events", token=carol) as still,
            talking(stage, session, token=bob) as talker,
            anyio.create_task_group() as group,
        ):
            group.start_soon(wait)
            await talker.say("1", "get_inbox")
            await talker.reply("1")
            kept = {"members": {"carol": "read"}}
            assert (await stage.ask("PATCH", session, kept, token=alice))[0] == 200
            with anyio.fail_after(WITHIN_S):
                assert (await seen.rest())[-1]["reason"] == "session_gone"
                assert (await talker.until("cut_off"))["reason"] == "session_gone"
            stage.model.gate("hold").open()
            await still.until("turn_settled")
        assert waited == [404]


async def test_a_key_gives_a_bound_token_no_answer_of_another_session(tmp_path: Path) -> None:
    async with serving([HOLD], tmp_path, start_token=None) as stage:
        alice = await stage.person("alice")
        session = await running(stage, alice)
        other = await stage.new_session(token=alice)
        headers = {"idempotency-key": "k"}
        await stage.post(f"{session}/interrupt", {}, token=alice, headers=headers)
        bound = await stage.person("alice", sessions=(other.rpartition("/")[2],))
        looking = await stage.person("alice", read_only=True)
        for token, expected in ((bound, 404), (looking, 403)):
            status, _ = await stage.ask(
                "POST", f"{session}/interrupt", {}, token=token, headers=headers
            )
            assert status == expected


async def test_who_tries_tokens_is_in_the_audit_log(tmp_path: Path) -> None:
    async with serving([], tmp_path, start_token=None) as stage:
        root = await stage.person("root", admin=True)
        await stage.ask("GET", "/v1/me", token="bgn_0_guess")
        entries = (await stage.get("/v1/admin/audit", token=root))["entries"]
        refused = [each["action"] for each in entries if each["status"] == 401]
        assert refused == ["admission to /v1/me"]


@pytest.mark.parametrize(
    "path",
    [
        "/static/../access.py",
        "/static/..%2faccess.py",
        "/static/%2e%2e/access.py",
        "/static/%2e%2e%2faccess.py",
        "/static/..%5caccess.py",
        "/static/%252e%252e/access.py",
        "/static//etc/passwd",
        "/static/%2fetc%2fpasswd",
        "/static/js/..%00/index.html",
    ],
)
async def test_no_file_but_the_pages_own_is_given(tmp_path: Path, path: str) -> None:
    async with serving([], tmp_path) as stage:
        host, port = stage.url.removeprefix("http://").split(":")
        async with await anyio.connect_tcp(host, int(port)) as stream:
            await stream.send(
                f"GET {path} HTTP/1.1\r\nhost: {host}:{port}\r\nconnection: close\r\n\r\n".encode()
            )
            head = await stream.receive()
        assert head.startswith(b"HTTP/1.1 404"), head[:60]


async def test_a_name_with_a_slash_is_no_way_into_a_session_of_the_terminal(tmp_path: Path) -> None:
    """The part before the slash is the caller's own session; the named session is not its child."""
    async with serving([], tmp_path, start_token=None) as stage:
        alice = await stage.person("alice")
        name = (await stage.new_session(token=alice)).rpartition("/")[2]
        await stage.engine.session(f"{name}/notes")
        assert (await stage.ask("GET", f"/v1/sessions/{name}/notes", token=alice))[0] == 404
        root = await stage.person("root", admin=True)
        assert (await stage.ask("GET", f"/v1/sessions/{name}/notes", token=root))[0] == 200


async def test_a_page_elsewhere_opens_nothing(tmp_path: Path) -> None:
    """A page of another port of this machine is of the same site, and a plain GET has no Origin. It
    could not read the answers, but it could use up connections and streams."""
    async with serving([], tmp_path) as stage:
        session = await stage.new_session()
        for site, expected in (("same-site", 403), ("cross-site", 403), ("same-origin", 200)):
            for path in (session, "/v1/sessions", "/v1/models"):
                status, _ = await stage.ask("GET", path, headers={"sec-fetch-site": site})
                assert status == expected, (site, path)
        for path in ("/", "/healthz"):
            async with stage.http.get(
                stage.url + path, headers={"sec-fetch-site": "cross-site"}
            ) as response:
                assert response.status == 200
