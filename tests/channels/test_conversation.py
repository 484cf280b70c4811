"""What the scenarios of every channel leave out."""

import itertools

import anyio
import pytest

from bargein.channels import words
from bargein.channels.bucket import Pace
from bargein.channels.contract import (
    ChatAddress,
    ChatMessage,
    ChatRate,
    Crowded,
    RetryLater,
    Traits,
)
from bargein.models.script import Answer, Call, Expect, Say, Wait
from bargein.session.limits import Limits
from bargein.testing.channel_conformance import (
    ChannelScene,
    FakeChannel,
    FakePlatform,
)
from bargein.testing.seeded import Seeded, run_seeded
from bargein.tools.ask import ask_tool

ALICE, PRIVATE, GROUP = FakePlatform.alice, FakePlatform.private, FakePlatform.group


def test_a_native_stop_on_an_old_preview_stops_nothing() -> None:
    async def main(run: Seeded) -> None:
        platform = FakePlatform()
        scene = ChannelScene(platform, run.clock)
        await scene.pair()
        async with scene.program([[Say("One.")], [Wait("on"), Say("Two.")]]):
            await platform.say(PRIVATE, ALICE, "A")
            await scene.sees("One.")
            await scene.quiet()
            await platform.say(PRIVATE, ALICE, "B")
            await scene.model.gate("on").reached()
            await platform.press_stop(PRIVATE, ALICE, "fake:c1.t1.0.0")
            await scene.sees(words.NOTHING_RUNS)
            scene.model.gate("on").open()
            await scene.sees("Two.")

    run_seeded(main, 1)


def test_a_native_stop_on_this_preview_stops_it() -> None:
    async def main(run: Seeded) -> None:
        platform = FakePlatform()
        scene = ChannelScene(platform, run.clock)
        await scene.pair()
        async with scene.program([[Say("One. "), Wait("on"), Say("Late.")]]):
            await platform.say(PRIVATE, ALICE, "A")
            await scene.model.gate("on").reached()
            await platform.press_stop(PRIVATE, ALICE, "fake:c1.t1.0.0")
            await scene.sees("Stopped in")
            await scene.quiet()
            assert not [each for each in platform.shown(PRIVATE) if "Late." in each.text]

    run_seeded(main, 1)


def test_a_free_question_is_answered_by_a_reply_and_by_nothing_else() -> None:
    async def main(run: Seeded) -> None:
        platform = FakePlatform()
        scene = ChannelScene(platform, run.clock)
        await scene.pair()
        script = [
            Answer([Call("ask", {"question": "Which?"})]),
            Answer([Expect(result="Oolong"), Say("Ok.")]),
        ]
        async with scene.program(script, tools=[ask_tool()]):
            await platform.say(PRIVATE, ALICE, "Serve")
            (question,) = await scene.sees("Which?")
            await platform.say(PRIVATE, ALICE, "Oolong", reply_to=question.id)
            await scene.sees("Ok.")

    run_seeded(main, 1)


def test_calls_to_a_chat_keep_within_its_rate_and_the_answer_comes_last() -> None:
    async def main(run: Seeded) -> None:
        platform = FakePlatform(rate=ChatRate(per_s=1.0, burst=3))
        scene = ChannelScene(platform, run.clock)
        await scene.pair()
        async with scene.program([[Say("word " * 30, pace_s=0.2), Say("End.")]]):
            await platform.say(PRIVATE, ALICE, "Tell me")
            await scene.until(
                lambda: any(each.text.endswith("End.") for each in platform.shown(PRIVATE)), "End."
            )
            times = [at for at, _, _ in platform.calls]
            for begin in times:
                assert sum(begin <= at < begin + 4 for at in times) <= 3 + 4
            (message,) = platform.shown(PRIVATE)
            assert len(message.texts) > 2, "it was previewed"

    run_seeded(main, 1)


def test_topics_are_sessions_of_their_own() -> None:
    async def main(run: Seeded) -> None:
        platform = FakePlatform()
        scene = ChannelScene(platform, run.clock)
        await scene.pair(GROUP)
        topics = [ChatAddress(GROUP.id, GROUP.kind, "1"), ChatAddress(GROUP.id, GROUP.kind, "2")]
        async with scene.program([[Say("Hello.")]], repeat=True):
            for topic in topics:
                await platform.say(topic, ALICE, "Hi")
            for topic in topics:
                await scene.sees("Hello.", topic)
            assert sorted(await scene.sessions()) == ["fake:g1:1", "fake:g1:2"]

    run_seeded(main, 1)


def test_a_chat_at_rest_holds_no_task_and_no_rows_of_its_answers() -> None:
    async def main(run: Seeded) -> None:
        platform = FakePlatform()
        scene = ChannelScene(platform, run.clock)
        await scene.pair()
        async with scene.program([[Say("One.")], [Say("Two.")]]):
            await platform.say(PRIVATE, ALICE, "A")
            await scene.sees("One.")
            await scene.quiet()
            assert not await scene.rows.scan("piece")
            await platform.say(PRIVATE, ALICE, "B")
            await scene.sees("Two.")
            await anyio.sleep(5)
            assert not await scene.rows.scan("piece")

    run_seeded(main, 1)


def test_calls_in_all_chats_together_keep_within_a_rate_and_all_are_let_in_later() -> None:
    async def main(run: Seeded) -> None:
        pace, times = Pace(10.0), []

        async def one_chat() -> None:
            while True:
                try:
                    pace.admit()
                except RetryLater as refusal:
                    await anyio.sleep(refusal.after_s)
                else:
                    times.append(anyio.current_time())
                    return

        async with anyio.create_task_group() as tasks:
            for _ in range(100):
                tasks.start_soon(one_chat)
        assert len(times) == 100
        for begin in times:
            assert sum(begin <= at < begin + 1 for at in times) <= 20
        assert max(times) - min(times) < 12

    run_seeded(main, 1)


class Drafts(FakePlatform):
    """Shows previews by means of its own, each for thirty seconds."""

    def __init__(self) -> None:
        super().__init__()
        self.traits = Traits(text_max=200, previews=True, preview_lasts_s=30.0)
        self.drafts: list[tuple[float, str]] = []

    def open_channel(self) -> FakeChannel:
        return _DraftsChannel(self)


class _DraftsChannel(FakeChannel):
    async def preview(self, chat: ChatAddress, key: str, text: str) -> str | None:
        assert isinstance(self._platform, Drafts)
        self._platform.drafts.append((anyio.current_time(), text))
        return ""


def test_a_preview_that_disappears_is_shown_again_while_the_answer_waits() -> None:
    """Its Stop button would go with it."""

    async def main(run: Seeded) -> None:
        platform = Drafts()
        scene = ChannelScene(platform, run.clock)
        await scene.pair()
        async with scene.program([Answer([Say("One. "), Wait("on"), Say("Two.")])]):
            await platform.say(PRIVATE, ALICE, "Hi")
            await scene.model.gate("on").reached()
            await anyio.sleep(200)
            times = [at for at, _ in platform.drafts]
            gaps = [later - at for at, later in itertools.pairwise(times)]
            assert 5 < len(times) < 15, "and not more often than it must"
            assert max(gaps) < 30
            scene.model.gate("on").open()
            await scene.sees("One. Two.")
            await scene.quiet()
            shown = len(platform.drafts)
            await anyio.sleep(200)
            assert len(platform.drafts) == shown

    run_seeded(main, 1)


def test_a_command_that_is_delivered_again_later_says_nothing_more() -> None:
    """Also when the chat has forgotten its reply, in this program or in the next."""

    async def main(run: Seeded) -> None:
        platform = FakePlatform(keyed=False)
        scene = ChannelScene(platform, run.clock)
        await scene.pair()
        async with scene.program([]):
            for text in ("/status", "/help", "/queue", "/stop", "/undo", "/nothing"):
                await platform.say(PRIVATE, ALICE, text)
            await scene.quiet()
            shown = [each.text for each in platform.shown(PRIVATE)]
            assert len(shown) == 6, shown
            await platform.redeliver()
            await scene.quiet()
            after = scene.crash()
        async with after.program([]):
            await platform.redeliver()
            await after.quiet()
            assert [each.text for each in platform.shown(PRIVATE)] == shown

    run_seeded(main, 1)


def test_a_message_that_was_refused_is_refused_once() -> None:
    async def main(run: Seeded) -> None:
        platform = FakePlatform(keyed=False)
        scene = ChannelScene(platform, run.clock)
        await scene.pair()
        async with scene.program([]):
            await platform.say(PRIVATE, ALICE, "x" * (Limits().message_bytes_max + 1))
            await scene.sees("Not taken")
            await scene.quiet()
            await platform.redeliver()
            await scene.quiet()
            assert len(platform.shown(PRIVATE)) == 1

    run_seeded(main, 1)


def test_previews_leave_calls_to_answers_where_all_chats_share_a_rate() -> None:
    async def main(run: Seeded) -> None:
        pace = Pace(9.0)
        for _ in range(6):
            pace.admit(hint=True)
        with pytest.raises(Crowded) as crowded:
            pace.admit(hint=True)
        assert 0 < crowded.value.after_s < 1
        for _ in range(3):
            pace.admit()
        with pytest.raises(Crowded):
            pace.admit()

    run_seeded(main, 1)


class CrowdedChannel(FakeChannel):
    """The platform never has a call for a preview."""

    refused = 0

    async def send(self, chat: ChatAddress, message: ChatMessage) -> str:
        if message.preview:
            self.refused += 1
            raise Crowded(1000.0)
        return await super().send(chat, message)


class CrowdedPlatform(FakePlatform):
    def open_channel(self) -> FakeChannel:
        self.channel = CrowdedChannel(self)
        return self.channel


def test_an_answer_does_not_wait_for_a_preview_that_was_refused() -> None:
    async def main(run: Seeded) -> None:
        platform = CrowdedPlatform(keyed=False)
        scene = ChannelScene(platform, run.clock)
        await scene.pair()
        async with scene.program([Answer([Say("One. "), Wait("on"), Say("Two.")])]):
            await platform.say(PRIVATE, ALICE, "Hi")
            await scene.model.gate("on").reached()
            await scene.until(lambda: platform.channel.refused, "a preview was refused")
            began = anyio.current_time()
            await platform.say(PRIVATE, ALICE, "/status")
            await scene.sees("Working on")
            scene.model.gate("on").open()
            await scene.sees("One. Two.")
            assert anyio.current_time() - began < 2
            await scene.quiet()
            assert platform.channel.refused < 3
            assert len(platform.shown(PRIVATE)) == 2

    run_seeded(main, 1)


def test_a_group_does_not_inherit_what_a_private_chat_may_do() -> None:
    async def main(run: Seeded) -> None:
        platform = FakePlatform()
        scene = ChannelScene(platform, run.clock)
        await scene.pair()
        await scene.pair(GROUP)
        async with scene.program([[Say("Hello.")]], repeat=True):
            modes = []
            for chat in (PRIVATE, GROUP):
                session = await scene.engine.session(scene.session_of(chat))
                await session.set_mode("full")
                await platform.say(chat, ALICE, "Hi")
                await scene.sees("Hello.", chat)
                modes.append(await session.mode())
            assert modes == ["full", "ask"]

    run_seeded(main, 1)
