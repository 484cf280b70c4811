"""The operator's walk through a real bot, walked by a person who does as told."""

from __future__ import annotations

import io
import re

import anyio
import pytest

from bargein.cli.channels_walk import STEPS, walk
from bargein.testing.chat_services.telegram import FakeTelegram

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.parametrize("anyio_backend", ["asyncio"]),
]


class Screen(io.StringIO):
    def shows(self, words: str) -> bool:
        return words in self.getvalue()


async def until(screen: Screen, words: str) -> None:
    with anyio.fail_after(30):
        while not screen.shows(words):  # noqa: ASYNC110 - a screen has no event
            await anyio.sleep(0.01)


async def act(platform: FakeTelegram, screen: Screen) -> None:
    private, alice = platform.private, platform.alice
    await until(screen, "1 of 7")
    code = re.search(r"\w{4}-\w{4}", screen.getvalue())
    assert code is not None
    await platform.say(private, alice, code[0])
    await until(screen, "2 of 7")
    await platform.say(private, alice, "hello")
    await until(screen, "3 of 7")
    await platform.say(private, alice, "Count")
    with anyio.fail_after(30):
        while not any("1, 2" in draft[2] for draft in platform.drafts):  # noqa: ASYNC110
            await anyio.sleep(0.01)
    await platform.say(private, alice, "stop")
    await until(screen, "4 of 7")
    for text in ("a", "b"):
        await platform.say(private, alice, text)
    last = await platform.say(private, alice, "c")
    await until(screen, "5 of 7")
    await platform.edit(private, alice, last, "d")
    await until(screen, "6 of 7")
    await platform.say(private, alice, "look", album="1")
    await until(screen, "7 of 7")
    await platform.say(private, alice, "ask")
    with anyio.fail_after(30):
        while not any("Tea?" in each.text for each in platform.shown(private)):  # noqa: ASYNC110
            await anyio.sleep(0.01)
    question = next(each for each in platform.shown(private) if "Tea?" in each.text)
    await platform.press(private, alice, question.id, "yes")


async def test_a_walk_through_everything() -> None:
    screen = Screen()
    async with FakeTelegram() as platform, anyio.create_task_group() as tasks:
        tasks.start_soon(act, platform, screen)
        assert await walk(platform.open_channel(), out=screen) == 0
    assert screen.getvalue().count("  ok: ") == len(STEPS) + 1
    assert "7 of 7 steps were seen." in screen.getvalue()


async def test_what_does_not_come_is_said() -> None:
    screen = Screen()
    async with FakeTelegram() as platform:
        assert await walk(platform.open_channel(), step_s=0.2, out=screen) == 1
    assert "NOT SEEN within" in screen.getvalue()
    assert "0 of 7 steps were seen." in screen.getvalue()
