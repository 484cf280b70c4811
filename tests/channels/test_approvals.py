"""An approval in a chat program shows everything that would run, or the call is refused."""

from __future__ import annotations

import re
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import anyio
import pytest

from bargein.channels import slack, words
from bargein.channels.contract import ChatMessage
from bargein.channels.splitting import split
from bargein.contracts.tool import Approval, Question, QuestionKind
from bargein.models.script import Answer, Call, Say
from bargein.testing.channel_conformance import ChannelScene, FakePlatform, PlatformUnderTest
from bargein.testing.chat_services.discord import FakeDiscord
from bargein.testing.chat_services.slack import FakeSlack
from bargein.testing.chat_services.telegram import FakeTelegram
from bargein.testing.seeded import Seeded, run_seeded
from bargein.tools import Decision, Policy, Rule
from bargein.tools.approval import DETAIL_CHARS_MAX

ASKS = Policy((Rule(Decision.ASK, "work"),))
AFTER = Answer([Say("After.")])
DECEPTIVE = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200b\u200e\u200f\u2028\u00ad"
LONG = " ".join(f"word{number}" for number in range(800))
WITH_MARKS = "rm *.py *.txt; echo __init__ ~~x~~ ||y|| `id` [here](https://example.org/x) # **all**"


class Works:
    def __init__(self) -> None:
        self.ran: list[str] = []

    def tool(self) -> object:
        async def work(command: str) -> str:
            """Work."""
            self.ran.append(command)
            return "done"

        return work


def test_a_long_approval_is_read_whole_before_its_buttons() -> None:
    works = Works()

    async def main(run: Seeded) -> None:
        platform = FakePlatform()
        scene = ChannelScene(platform, run.clock)
        await scene.pair()
        await anyio.sleep(1)
        script = [Answer([Call("work", {"command": LONG})]), AFTER]
        async with scene.program(script, tools=[works.tool()], policy=ASKS):
            await platform.say(platform.private, platform.alice, "Begin")
            await scene.sees("word799")
            await scene.quiet()
            shown = platform.shown(platform.private)
            assert len(shown) > 10
            assert all(len(each.text) <= platform.traits.text_max // 2 for each in shown)
            assert LONG in " ".join(each.text for each in shown)
            assert [bool(each.buttons) for each in shown] == [False] * (len(shown) - 1) + [True]
            assert not works.ran
            await platform.press(platform.private, platform.alice, shown[-1].id, Approval.ALLOW)
            await scene.sees("After.")
            assert works.ran == [LONG]

    run_seeded(main, 1)


def test_a_command_that_no_approval_can_show_is_refused_and_not_asked() -> None:
    works = Works()

    async def main(run: Seeded) -> None:
        platform = FakePlatform()
        scene = ChannelScene(platform, run.clock)
        await scene.pair()
        script = [Answer([Call("work", {"command": "x" * (DETAIL_CHARS_MAX + 1)})]), AFTER]
        async with scene.program(script, tools=[works.tool()], policy=ASKS):
            await platform.say(platform.private, platform.alice, "Begin")
            await scene.sees("After.")
            await scene.quiet()
            assert len(platform.shown(platform.private)) == 1
            assert not works.ran
            assert "more than can be shown" in str(scene.model.requests[-1].messages)

    run_seeded(main, 1)


def test_characters_that_hide_grow_and_still_nothing_is_cut() -> None:
    """Each of them is written as eight or nine characters."""
    works = Works()

    async def main(run: Seeded) -> None:
        platform = FakePlatform()
        scene = ChannelScene(platform, run.clock)
        await scene.pair()
        script = [Answer([Call("work", {"command": "a" + DECEPTIVE * 20 + "z"})]), AFTER]
        async with scene.program(script, tools=[works.tool()], policy=ASKS):
            await platform.say(platform.private, platform.alice, "Begin")
            await scene.until(
                lambda: any(each.buttons for each in platform.shown(platform.private)), "buttons"
            )
            text = "".join(each.text for each in platform.shown(platform.private))
            assert "".join(f"<U+{ord(each):04X}>" for each in DECEPTIVE * 20) in text
            assert not set(DECEPTIVE) & set(text)

    run_seeded(main, 1)


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("service", [FakeTelegram, FakeSlack, FakeDiscord])
async def test_no_service_hides_a_part_of_a_command(
    service: type[AbstractAsyncContextManager[PlatformUnderTest]],
) -> None:
    works = Works()
    command = f"echo {DECEPTIVE}; {WITH_MARKS}"
    async with service() as platform:
        scene = ChannelScene(platform)
        await scene.pair()
        script = [Answer([Call("work", {"command": command})]), AFTER]
        async with scene.program(script, tools=[works.tool()], policy=ASKS):
            await platform.say(platform.private, platform.alice, "Begin")
            await scene.until(
                lambda: any(each.buttons for each in platform.shown(platform.private)), "buttons"
            )
            text = "".join(each.text for each in platform.shown(platform.private))
            if service is FakeDiscord:
                # Every mark that Discord reads has its backslash, which Discord does not show.
                assert not re.search(r"[*_~|`\[\]#<>@]", re.sub(r"\\[!-~]", "", text))
                text = re.sub(r"\\([!-~])", r"\1", text)
            assert WITH_MARKS in text
            assert "".join(f"<U+{ord(each):04X}>" for each in DECEPTIVE) in text
            assert not set(DECEPTIVE) & set(text)


def test_slack_reads_no_marks_in_an_exact_message_and_takes_its_length() -> None:
    text = f"{WITH_MARKS}\n" * 60
    blocks = slack._content(ChatMessage(text, "k", exact=True))["blocks"]
    assert {each["text"]["type"] for each in blocks} == {"plain_text"}
    assert all(len(each["text"]["text"]) <= slack.SECTION_MAX for each in blocks)
    assert "".join(each["text"]["text"] for each in blocks) == text


def test_matrix_makes_no_html_of_an_exact_message(tmp_path: Path) -> None:
    pytest.importorskip("nio")
    from bargein.channels.matrix import MatrixChannel

    channel = MatrixChannel(
        "m", homeserver="http://127.0.0.1:1", user="@bot:h", token="t", folder=tmp_path
    )
    assert "formatted_body" in channel._content(ChatMessage(WITH_MARKS, "k"))
    exact = channel._content(ChatMessage(WITH_MARKS, "k", exact=True))
    assert exact == {"msgtype": "m.text", "body": WITH_MARKS}


@pytest.mark.parametrize("limit", [200, 2000])
def test_the_words_of_an_approval_are_split_and_lose_nothing(limit: int) -> None:
    detail = f"```\nrm -rf /{DECEPTIVE}\n" * 300
    question = Question(f"Run?{DECEPTIVE}", QuestionKind.APPROVAL, ("allow", "deny"), detail=detail)
    said = words.question_in_words(question)
    assert not set(DECEPTIVE) & set(said)
    parts = split(said, limit, fences=False)
    assert all(len(part) <= limit for part in parts)
    assert "".join("".join(parts).split()) == "".join(said.split())
