"""The browser forgets the token when it is told to, and only by a page of this server."""

from __future__ import annotations

from pathlib import Path

import aiohttp
import pytest

from tests.server.stage import START_TOKEN, serving

pytestmark = pytest.mark.anyio


async def test_the_cookie_is_taken_back(tmp_path: Path) -> None:
    async with serving([], tmp_path) as stage:
        jar = aiohttp.CookieJar(unsafe=True)
        async with aiohttp.ClientSession(cookie_jar=jar) as browser:
            await browser.post(f"{stage.url}/login", json={"token": START_TOKEN})
            assert len(jar) == 1
            async with browser.get(f"{stage.url}/v1/me") as answer:
                assert answer.status == 200
            async with browser.post(f"{stage.url}/logout") as answer:
                assert answer.status == 204
                told = answer.headers["set-cookie"].lower()
            assert "httponly" in told
            assert "samesite=strict" in told
            assert len(jar) == 0
            # Signing out twice, or without ever having been in, is no error.
            async with browser.post(f"{stage.url}/logout") as answer:
                assert answer.status == 204
        # Other browsers with the same token stay in.
        await stage.get("/v1/me")


async def test_another_page_signs_nobody_out(tmp_path: Path) -> None:
    async with serving([], tmp_path) as stage:
        status, answer = await stage.ask(
            "POST", "/logout", token=None, headers={"origin": "https://elsewhere.example"}
        )
        assert (status, answer["code"]) == (403, "wrong_origin")
        assert (await stage.ask("GET", "/logout", token=None))[0] == 405
