"""`bargein channels` and `bargein serve`, as an operator uses them: the server is a process of its
own, the service is in this one."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import aiohttp
import anyio
import pytest

from bargein.channels import words
from bargein.cli.arguments import command_line
from bargein.cli.channels import act
from bargein.errors import UserError
from bargein.runtime.config import load_config
from bargein.testing.chat_services.telegram import TOKEN, FakeTelegram
from tests.server.program import Program

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.parametrize("anyio_backend", ["asyncio"]),
    pytest.mark.timeout(120),
]

SCRIPT = """
repeat = true
[[answers]]
when = "Count"
steps = [{ do = "say", text = "One. " }, { do = "pause", seconds = 600.0 }]
[[answers]]
steps = [{ do = "say", text = "Hello." }]
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("TELEGRAM_TOKEN", TOKEN)
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    return home


class Commands:
    """`bargein channels`, in this process: the service answers meanwhile."""

    def __init__(self, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
        environment = {**os.environ, "BARGEIN_HOME": str(home)}
        self._config = load_config(environment, folder=home)
        self._capsys = capsys

    async def __call__(self, *words: str) -> str:
        """Returns what it printed."""
        self._capsys.readouterr()
        given = command_line().parse_args(["channels", *words])
        self.exit_code = await act(given, self._config)
        shown = self._capsys.readouterr()
        return shown.out + shown.err

    async def add(self, platform: FakeTelegram) -> None:
        options = ("token=${TELEGRAM_TOKEN}", f"api={platform.address}")
        await self("add", "telegram", "telegram", *options)

    async def pair(self, platform: FakeTelegram) -> None:
        code = (await self("pair", "telegram")).splitlines()[0]
        assert re.fullmatch(r"\w{4}-\w{4}", code)
        await platform.say(platform.private, platform.alice, f"/start {code}")
        await sees(platform, words.PAIRED)


@pytest.fixture
def channels(home: Path, capsys: pytest.CaptureFixture[str]) -> Commands:
    return Commands(home, capsys)


async def sees(platform: FakeTelegram, text: str, count: int = 1) -> None:
    def is_shown() -> bool:
        return sum(text in each.text for each in platform.shown(platform.private)) >= count

    await until(is_shown)


async def until(holds: Callable[[], bool]) -> None:
    with anyio.fail_after(50):
        while not holds():  # noqa: ASYNC110 - a service has no event for what it shows
            await anyio.sleep(0.02)


async def delivered(platform: FakeTelegram) -> None:
    await until(lambda: not platform.waiting)


async def test_from_nothing_to_an_answer_and_back(home: Path, channels: Commands) -> None:
    async with FakeTelegram() as platform:
        assert "no channels" in await channels("list")
        await channels.add(platform)
        assert "works: @test_bot" in await channels("test")
        assert "does not run" in await channels("list")
        with Program(home, SCRIPT) as program:
            await channels.pair(platform)
            await platform.say(platform.private, platform.alice, "Hi")
            await sees(platform, "Hello.")
            listed = await channels("list")
            assert "telegram  telegram  runs" in listed
            assert "paired: Alice (11) in private" in listed
            async with (
                aiohttp.ClientSession() as http,
                http.get(f"{program.url}/metrics", headers=program.headers) as answer,
            ):
                assert 'bargein_channel_up{channel="telegram"} 1.0' in await answer.text()
            async with (
                aiohttp.ClientSession() as http,
                http.get(f"{program.url}/v1/admin/running", headers=program.headers) as answer,
            ):
                (shown,) = (await answer.json())["channels"]
                assert (shown["name"], shown["running"], shown["unsent"]) == ("telegram", True, 0)
            # Another program reads with the same token: Telegram ends the older poll.
            async with aiohttp.ClientSession() as http:
                await http.post(f"{platform.address}/bot{TOKEN}/getUpdates")
            with anyio.fail_after(20):
                while "terminated by other getUpdates" not in await channels("list"):  # noqa: ASYNC110
                    await anyio.sleep(0.05)
            assert TOKEN not in program.log
            await channels("pair", "telegram", "--revoke", "11")
            await platform.say(platform.private, platform.alice, "Hi again")
            await delivered(platform)
        assert len(platform.shown(platform.private)) == 2, "who is not paired any more gets silence"
        await channels("remove", "telegram")
        assert "no channels" in await channels("list")


async def test_a_mistake_is_said_before_anything_runs(channels: Commands) -> None:
    with pytest.raises(UserError, match="has no 'tokn'"):
        await channels("add", "t", "telegram", "tokn=x")
    await channels("add", "t", "telegram", "token=${NOT_SET}")
    with pytest.raises(UserError, match="needs the variable NOT_SET"):
        await channels("test", "t")
    with pytest.raises(UserError, match="have the same token"):
        await channels("add", "u", "telegram", "token=${NOT_SET}")
    with pytest.raises(UserError, match="has a channel t already"):
        await channels("add", "t", "telegram", "token=1:a")


async def test_kill_9_in_an_answer_and_restart(home: Path, channels: Commands) -> None:
    async with FakeTelegram() as platform:
        await channels.add(platform)
        with Program(home, SCRIPT) as program:
            await channels.pair(platform)
            await platform.say(platform.private, platform.alice, "Count")
            await until(lambda: any("One." in text for _, _, text, _ in platform.drafts))
            program.kill()
            await platform.say(platform.private, platform.alice, "Are you there?")
        with Program(home, SCRIPT):
            await sees(platform, words.CRASHED)
            await sees(platform, "Hello.")
            await platform.redeliver()
            await delivered(platform)
        shown = [each.text for each in platform.shown(platform.private)]
        assert sorted(shown) == sorted([words.PAIRED, words.CRASHED, "Hello."])


async def test_kill_9_in_a_send_and_restart(home: Path, channels: Commands) -> None:
    """Telegram has the message, and nobody here knows: it comes again with a mark."""
    async with FakeTelegram() as platform:
        await channels.add(platform)
        with Program(home, SCRIPT) as program:
            await channels.pair(platform)
            platform.hang_after_next_send()
            await platform.say(platform.private, platform.alice, "Hi")
            await sees(platform, "Hello.")
            program.kill()
        with Program(home, SCRIPT):
            await sees(platform, "Hello.", count=2)
        shown = [each.text for each in platform.shown(platform.private) if "Hello." in each.text]
        assert [words.SENT_AGAIN in text for text in shown] == [False, True]
