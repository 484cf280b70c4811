"""A page elsewhere cannot drive the server: by its name, its origin, a form or a cookie."""

from pathlib import Path

import aiohttp
import pytest

from bargein.server.gateway import Settings
from tests.server.stage import START_TOKEN, serving

pytestmark = pytest.mark.anyio


async def test_a_name_that_is_not_ours_is_refused(tmp_path: Path) -> None:
    settings = Settings(names=("agents.example",))
    async with serving([], tmp_path, settings=settings) as stage:
        for host in ("evil.example", "evil.example:80", "localhost.evil.example", "", "[::x]"):
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


async def test_the_page_is_let_in_by_a_cookie_and_the_token_leaves_the_address(
    tmp_path: Path,
) -> None:
    async with serving([], tmp_path, settings=Settings(cookie="bargein_1")) as stage:
        async with stage.http.get(
            f"{stage.url}/?token={START_TOKEN}", allow_redirects=False
        ) as response:
            assert (response.status, response.headers["location"]) == (303, "/")
            cookie = response.headers["set-cookie"]
        assert cookie.startswith(f"bargein_1={START_TOKEN};")
        assert "HttpOnly" in cookie
        assert "SameSite=strict" in cookie
        headers = {"cookie": f"bargein_1={START_TOKEN}"}
        assert (await stage.ask("GET", "/v1/me", token=None, headers=headers))[0] == 200
        headers["cookie"] = "bargein_1=wrong"
        assert (await stage.ask("GET", "/v1/me", token=None, headers=headers))[0] == 401


async def test_a_wrong_token_does_not_open_the_page(tmp_path: Path) -> None:
    async with serving([], tmp_path) as stage:
        status, answer = await stage.ask("GET", "/?token=wrong", token=None)
        assert (status, answer["code"]) == (401, "unauthenticated")
        status, answer = await stage.ask("POST", "/login", {"token": "wrong"}, token=None)
        assert (status, answer["code"]) == (401, "unauthenticated")
        status, _ = await stage.ask("POST", "/login", {"token": START_TOKEN}, token=None)
        assert status == 204


async def test_a_browser_with_a_token_of_an_earlier_start_is_shown_the_door(tmp_path: Path) -> None:
    """Not a problem in JSON: the page asks who is there, and says where tokens come from."""
    async with (
        serving([], tmp_path) as stage,
        stage.http.get(
            f"{stage.url}/?token=of-an-earlier-start",
            headers={"accept": "text/html,application/xhtml+xml,*/*;q=0.8"},
            allow_redirects=False,
        ) as response,
    ):
        assert (response.status, response.headers["location"]) == (303, "/?refused")
        assert "set-cookie" not in response.headers


async def test_every_answer_carries_a_strict_policy(tmp_path: Path) -> None:
    async with serving([], tmp_path) as stage:
        for path in ("/healthz", "/v1/sessions", "/nothing"):
            async with stage.http.get(stage.url + path) as response:
                policy = response.headers["content-security-policy"]
                assert "frame-ancestors 'none'" in policy
                assert "unsafe" not in policy
                assert "access-control-allow-origin" not in response.headers
