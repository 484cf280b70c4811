"""A page elsewhere cannot drive the server, by its name, its origin or a form; and nothing that a
browser sends by itself authenticates anybody."""

from pathlib import Path

import aiohttp
import pytest

from bargein.server.gateway import Settings
from tests.server.stage import START_TOKEN, serving

pytestmark = pytest.mark.anyio

# Each begins or ends like an address.
DISGUISED = (
    "[::1].evil.example",
    "[::1]evil.example:80",
    "[::1%evil.example]",
    "[127.0.0.1].evil.example",
    "127.0.0.1.evil.example",
    "127.0.0.1:80.evil.example",
    "localhost:evil.example",
    "::1",
    "::1:80",
    "[::1]:80:90",
)


async def test_a_name_that_is_not_ours_is_refused(tmp_path: Path) -> None:
    settings = Settings(names=("agents.example",))
    async with serving([], tmp_path, settings=settings) as stage:
        for host in (
            "evil.example",
            "evil.example:80",
            "localhost.evil.example",
            "",
            "[::x]",
            *DISGUISED,
        ):
            for path in ("/v1/sessions", "/", "/healthz"):
                status, answer = await stage.ask("GET", path, headers={"host": host})
                assert (status, answer["code"]) == (421, "wrong_host"), host
        for host in ("localhost:1", "127.0.0.1", "[::1]:8484", "agents.example", "AGENTS.example"):
            assert (await stage.ask("GET", "/v1/sessions", headers={"host": host}))[0] == 200


async def test_a_page_from_elsewhere_is_refused_whatever_it_asks(tmp_path: Path) -> None:
    settings = Settings(origins=("https://front.example",))
    async with serving([], tmp_path, settings=settings) as stage:
        session = await stage.new_session()
        for origin in ("https://evil.example", "null", "http://127.0.0.1:1", stage.url + ".evil"):
            for method, path in (("GET", session), ("POST", f"{session}/interrupt")):
                status, answer = await stage.ask(method, path, headers={"origin": origin})
                assert (status, answer["code"]) == (403, "wrong_origin"), origin
        for origin in (stage.url, "https://front.example"):
            assert (await stage.ask("GET", session, headers={"origin": origin}))[0] == 200


async def test_a_websocket_from_elsewhere_is_refused(tmp_path: Path) -> None:
    async with serving([], tmp_path) as stage:
        session = await stage.new_session()
        address = stage.url.replace("http", "ws") + f"{session}/socket"
        headers = {"authorization": f"Bearer {START_TOKEN}", "origin": "https://evil.example"}
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await stage.http.ws_connect(address, headers=headers)
        assert refused.value.status == 403
        async with stage.http.ws_connect(address, headers={**headers, "origin": stage.url}):
            pass


async def test_what_a_form_could_send_is_refused(tmp_path: Path) -> None:
    async with serving([], tmp_path) as stage:
        session = await stage.new_session()
        for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
            status, answer = await stage.ask(
                "POST", f"{session}/messages", b'{"text": "x"}', headers={"content-type": kind}
            )
            assert (status, answer["code"]) == (415, "wrong_type")


async def test_no_cookie_lets_anybody_in_and_none_is_set(tmp_path: Path) -> None:
    """A browser sends cookies to every port of a machine, even to servers that an agent started."""
    async with serving([], tmp_path) as stage:
        for name in ("bargein", "bargein_8484", "__Host-bargein"):
            headers = {"cookie": f"{name}={START_TOKEN}"}
            status, answer = await stage.ask("GET", "/v1/me", token=None, headers=headers)
            assert (status, answer["code"]) == (401, "unauthenticated")
        for path in ("/", "/v1/me", "/healthz"):
            headers = {"authorization": f"Bearer {START_TOKEN}"}
            async with stage.http.get(stage.url + path, headers=headers) as response:
                assert response.status == 200
                assert "set-cookie" not in response.headers


async def test_a_token_behind_the_question_mark_is_not_used(tmp_path: Path) -> None:
    """Every proxy has logged it by then."""
    async with serving([], tmp_path) as stage:
        status, answer = await stage.ask("GET", f"/?token={START_TOKEN}", token=None)
        assert (status, answer["code"]) == (400, "bad_request")
        assert "#token=" in answer["detail"]
        assert START_TOKEN not in answer["detail"]
        async with stage.http.get(
            f"{stage.url}/?token={START_TOKEN}",
            headers={"accept": "text/html,application/xhtml+xml,*/*;q=0.8"},
            allow_redirects=False,
        ) as response:
            assert (response.status, response.headers["location"]) == (303, "/#token-in-query")
            assert "set-cookie" not in response.headers
        status, _ = await stage.ask("GET", f"/v1/me?token={START_TOKEN}", token=None)
        assert status == 401


async def test_every_answer_carries_a_strict_policy(tmp_path: Path) -> None:
    async with serving([], tmp_path) as stage:
        for path in ("/healthz", "/v1/sessions", "/nothing"):
            async with stage.http.get(stage.url + path) as response:
                policy = response.headers["content-security-policy"]
                assert "frame-ancestors 'none'" in policy
                assert "unsafe" not in policy
                assert "access-control-allow-origin" not in response.headers
