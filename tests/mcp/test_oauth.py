"""Signing in to a server: what is asked, what is kept, refreshed, refused and forgotten."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import msgspec
import pytest

from bargein import Agent
from bargein.contracts.tool import CallStatus
from bargein.mcp import McpServer
from bargein.mcp.oauth.authorizer import Authorizer
from bargein.mcp.oauth.discovery import OAuthFailed, check_address, read_challenge
from bargein.mcp.oauth.flow import Visit
from bargein.mcp.oauth.kept import KeptToken, RegisteredClient
from bargein.runtime.config import user_file
from bargein.runtime.hiding import hiding_of
from bargein.runtime.mcp_tokens import TokenFile
from tests.mcp.harness import House, house
from tests.mcp.oauth_server import OAuthServer, oauth_server
from tests.session.world import CONFIG
from tests.tools.desk import text_of

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]

REDIRECT = "http://127.0.0.1:9/callback"
ECHO = "mcp__web__echo"


async def visit(url: str) -> str:
    """A browser whose user agrees at once."""
    async with aiohttp.ClientSession() as http, http.get(url, allow_redirects=False) as answer:
        return answer.headers["Location"]


@asynccontextmanager
async def at_home(
    server: OAuthServer, folder: Path, browser: Visit | None = None, **options: str
) -> AsyncIterator[House]:
    def authorizer_of(configured: McpServer) -> Authorizer:
        tokens = TokenFile(folder)
        return Authorizer(configured, tokens, redirect=REDIRECT, visit=browser)

    async with house(server.configured(**options), authorizer_of=authorizer_of) as home:
        await home.prepare()
        yield home


def kept(server: OAuthServer, folder: Path) -> KeptToken | None:
    return TokenFile(folder).get(f"{server.url}/mcp")


async def test_without_a_user_the_error_says_how_to_sign_in(tmp_path: Path) -> None:
    async with oauth_server() as server, at_home(server, tmp_path) as home:
        (status,) = home.servers.status()
        assert status.state == "failed"
        assert "it wants you to sign in; run  bargein mcp login web" in status.error
        assert server.asked == []


async def test_a_sign_in_is_kept_for_the_user_alone_and_used_by_others(tmp_path: Path) -> None:
    async with oauth_server() as server:
        async with at_home(server, tmp_path, visit) as home:
            assert text_of(await home.call(ECHO)) == "an answer"
        (asked,) = server.asked
        assert (asked["scope"], asked["resource"]) == ("use", f"{server.url}/mcp")
        assert asked["code_challenge_method"] == "S256"
        path = TokenFile(tmp_path).path
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert server.grants == ["authorization_code"]
        # Another process, which has no user.
        async with at_home(server, tmp_path) as home:
            assert text_of(await home.call(ECHO)) == "an answer"
        assert len(server.asked) == 1


async def test_a_token_that_ends_is_refreshed_before_it_is_used(tmp_path: Path) -> None:
    async with oauth_server(lasts_s=1) as server:
        async with at_home(server, tmp_path, visit) as home:
            assert text_of(await home.call(ECHO)) == "an answer"
        assert "refresh_token" in server.grants
        assert len(server.asked) == 1


async def test_a_refused_token_is_refreshed_and_the_call_runs_once(tmp_path: Path) -> None:
    async with oauth_server() as server, at_home(server, tmp_path, visit) as home:
        server.tokens.clear()
        assert text_of(await home.call(ECHO)) == "an answer"
        assert server.calls == 1
        assert server.grants == ["authorization_code", "refresh_token"]
        assert len(server.asked) == 1


async def test_a_token_that_cannot_be_refreshed_is_forgotten_and_the_user_is_told(
    tmp_path: Path,
) -> None:
    async with oauth_server(refreshes=False) as server:
        async with at_home(server, tmp_path, visit):
            pass
        server.tokens.clear()
        async with at_home(server, tmp_path) as home:
            assert "bargein mcp login web" in home.servers.status()[0].error
        left = kept(server, tmp_path)
        assert left is not None
        assert (left.access, left.refresh) == ("", "")


async def test_more_rights_are_asked_for_together_with_those_before(tmp_path: Path) -> None:
    async with oauth_server() as server:
        async with at_home(server, tmp_path, visit):
            pass
        server.call_needs = ("use", "write")
        async with at_home(server, tmp_path) as home:
            result = await home.call(ECHO)
            assert result.status is CallStatus.FAILED
            assert "it wants more (use write); run  bargein mcp login web" in text_of(result)
        async with at_home(server, tmp_path, visit) as home:
            assert text_of(await home.call(ECHO)) == "an answer"
        assert server.asked[-1]["scope"] == "use write"
        assert server.calls == 1


async def test_a_server_that_never_has_enough_is_not_asked_for_ever(tmp_path: Path) -> None:
    less = {"grants_only": "use", "call_needs": ("use", "more")}
    async with oauth_server(**less) as server, at_home(server, tmp_path, visit) as home:
        result = await home.call(ECHO)
        assert result.status is CallStatus.FAILED
        assert len(server.asked) <= 4


async def test_a_sign_in_without_pkce_is_refused(tmp_path: Path) -> None:
    async with oauth_server(pkce=False) as server, at_home(server, tmp_path, visit) as home:
        assert "does not offer PKCE" in home.servers.status()[0].error
        assert server.asked == []


async def test_metadata_that_come_in_pieces_are_read_to_their_end(tmp_path: Path) -> None:
    # More than a connection buffers at once.
    more = {"service_documentation": "x" * 200_000}
    async with oauth_server(more_metadata=more) as server, at_home(server, tmp_path, visit) as home:
        assert text_of(await home.call(ECHO)) == "an answer"


async def test_a_time_larger_than_any_number_is_no_time(tmp_path: Path) -> None:
    async with oauth_server(lasts_s=10**400) as server:
        async with at_home(server, tmp_path, visit) as home:
            assert text_of(await home.call(ECHO)) == "an answer"
        found = kept(server, tmp_path)
        assert found is not None
        assert found.expires_at == 0.0


async def test_an_address_cannot_write_to_the_terminal(tmp_path: Path) -> None:
    visited: list[str] = []

    async def shown(url: str) -> str:
        visited.append(url)
        return await visit(url)

    evil = "https://127.0.0.1/\x1b]0;owned\x07"
    async with oauth_server(more_metadata={"authorization_endpoint": evil}) as server:
        async with at_home(server, tmp_path, shown) as home:
            error = home.servers.status()[0].error
        assert visited == []
        assert error.isprintable()
        assert "has characters that no address has" in error


async def test_a_token_that_no_header_can_have_is_refused(tmp_path: Path) -> None:
    async with oauth_server(more_granted={"access_token": "a\r\nX-Evil: 1"}) as server:
        async with at_home(server, tmp_path, visit) as home:
            assert "gave no bearer token" in home.servers.status()[0].error
        assert kept(server, tmp_path) is None


async def test_a_server_that_demands_ever_more_does_not_fill_the_file(tmp_path: Path) -> None:
    async with oauth_server() as server:
        async with at_home(server, tmp_path, visit):
            pass
        async with at_home(server, tmp_path) as home:
            for number in range(5):
                server.call_needs = (f"a{number}" + "x" * 2000,)
                result = await home.call(ECHO)
                assert "it wants more (a" in text_of(result)
                assert len(text_of(result)) < 1000
        found = kept(server, tmp_path)
        assert found is not None
        assert found.scope.split()[-1] == server.call_needs[0]
        assert len(found.scope) <= 2 * 2002


async def test_a_secret_goes_only_to_the_server_that_gave_it(tmp_path: Path) -> None:
    async with oauth_server() as server:
        url, other = f"{server.url}/mcp", RegisteredClient("https://other.test", "mine", "secret")
        TokenFile(tmp_path).put(url, KeptToken(client=other))
        own = {"oauth_client_id": "mine"}
        async with at_home(server, tmp_path, visit, **own) as home:
            error = home.servers.status()[0].error
        assert "no longer at https://other.test" in error
        assert "bargein mcp logout web" in error
        assert not server.asked
        assert not server.grants
        TokenFile(tmp_path).remove(url)
        async with at_home(server, tmp_path, visit, **own) as home:
            assert text_of(await home.call(ECHO)) == "an answer"


async def test_an_answer_of_another_sign_in_is_refused(tmp_path: Path) -> None:
    async def misled(url: str) -> str:
        return (await visit(url)).replace("state=", "state=x")

    async with oauth_server() as server, at_home(server, tmp_path, misled) as home:
        assert "came back from another sign-in" in home.servers.status()[0].error
        assert server.grants == []


async def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    TokenFile(tmp_path).path.write_text("{")
    async with oauth_server() as server, at_home(server, tmp_path) as home:
        assert "mcp_tokens.json cannot be read" in home.servers.status()[0].error


def test_secrets_go_nowhere_in_the_clear() -> None:
    here, there = "http://127.0.0.1:1/mcp", "https://example.com/mcp"
    check_address("web", "https://example.com/x", there)
    for address in ("http://127.0.0.1:1/x", "http://localhost/x"):
        check_address("web", address, here)
        with pytest.raises(OAuthFailed, match="not https"):
            check_address("web", address, there)
    for address in ("http://example.com/x", "ftp://127.0.0.1/x", "http://127.0.0.1.example.com"):
        with pytest.raises(OAuthFailed, match="not https"):
            check_address("web", address, here)


def test_commands_do_not_see_the_tokens(tmp_path: Path) -> None:
    home = tmp_path / "data"
    home.mkdir()
    path = TokenFile(user_file(CONFIG.environment).parent).path
    assert hiding_of(Agent(), CONFIG, home).covers(os.path.realpath(path))


def test_a_challenge_is_read() -> None:
    header = 'Bearer error="insufficient_scope", scope="a b", resource_metadata="https://x/y"'
    challenge = read_challenge(header)
    assert (challenge.scope, challenge.metadata_url) == ("a b", "https://x/y")
    assert challenge.wants_more
    assert read_challenge("Basic realm=x").scope == ""


def test_no_challenge_takes_long_to_read() -> None:
    # It took time by the square of its length, while nobody else was served.
    assert read_challenge("a" * 1_000_000 + ' scope="a"').scope == "a"


def test_a_token_knows_when_it_ends() -> None:
    token = KeptToken("a", expires_at=time.time() + 10)
    assert token.usable
    assert token.ends_soon
    assert not msgspec.structs.replace(token, expires_at=time.time() - 1).usable
    assert KeptToken("a").usable


# The program


async def program(folder: Path, *arguments: str) -> asyncio.subprocess.Process:
    around = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "XDG_CONFIG_HOME": str(folder / "config"),
        "BARGEIN_HOME": str(folder / "data"),
    }
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bargein", "mcp", *arguments),
        env=around,
        cwd=folder,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def ended(running: asyncio.subprocess.Process) -> tuple[int, str]:
    out, err = await running.communicate()
    assert running.returncode is not None
    return running.returncode, (out + err).decode()


async def test_login_and_logout_of_the_program(tmp_path: Path) -> None:
    async with oauth_server() as server:
        configured = tmp_path / "config" / "bargein" / "mcp.json"
        configured.parent.mkdir(parents=True)
        spec = {"type": "http", "url": f"{server.url}/mcp"}
        configured.write_text(json.dumps({"mcpServers": {"web": spec}}))
        running = await program(tmp_path, "login", "web", "--no-browser")
        assert running.stderr is not None
        url = ""
        while "/authorize" not in url:
            line = await running.stderr.readline()
            assert line, "it ended"
            url = line.decode().strip()
        back = await visit(url)
        async with aiohttp.ClientSession() as http:
            # Somebody else's answer changes nothing.
            async with http.get(back.replace("state=", "state=x")) as answer:
                assert answer.status == 404
            async with http.get(back) as answer:
                assert answer.status == 200
                assert "Close this window" in await answer.text()
        code, said = await ended(running)
        assert (code, "signed in to web" in said) == (0, True), said
        assert back.startswith("http://127.0.0.1:")

        async with at_home(server, configured.parent) as home:
            assert text_of(await home.call(ECHO)) == "an answer"

        code, said = await ended(await program(tmp_path, "logout", "web"))
        assert (code, said) == (0, "signed out of web\n")
        assert server.revoked == ["refresh-1"]
        tokens = tmp_path / "config" / "bargein" / "mcp_tokens.json"
        assert json.loads(tokens.read_text()) == {}
