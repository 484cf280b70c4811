"""What one chat, one file, one row or one stranger must not do to the others."""

from __future__ import annotations

from collections.abc import Sequence

import anyio
import pytest

from bargein.channels import words
from bargein.channels.contract import (
    ChatAddress,
    ChatMessage,
    NotDelivered,
    NotReached,
    Offer,
    Update,
    UpdateKind,
)
from bargein.channels.rows import MemoryRows, Row
from bargein.models.script import Answer, Call, Say, Wait
from bargein.testing.channel_conformance import ChannelScene, FakeChannel, FakePlatform
from bargein.testing.seeded import Seeded, run_seeded

ALICE, BOB = FakePlatform.alice, FakePlatform.bob
PRIVATE, GROUP = FakePlatform.private, FakePlatform.group
OTHER = ChatAddress("c2")
PHOTO = Offer("f", "photo.jpg", "image/jpeg")


class SlowFiles(FakePlatform):
    """Its files take for ever."""

    def open_channel(self) -> FakeChannel:
        return _SlowFilesChannel(self)


class _SlowFilesChannel(FakeChannel):
    async def fetch(self, offer: Offer, bytes_max: int) -> bytes:
        await anyio.sleep_forever()
        raise AssertionError


def test_a_slow_file_in_one_chat_holds_up_no_stop_in_another() -> None:
    async def main(run: Seeded) -> None:
        platform = SlowFiles()
        scene = ChannelScene(platform, run.clock)
        await scene.pair()
        await scene.pair(OTHER)
        async with scene.program([Answer([Say("One. "), Wait("on"), Say("Late.")])], repeat=True):
            await platform.say(PRIVATE, ALICE, "Begin")
            await scene.model.gate("on").reached()
            await platform.say(OTHER, ALICE, "Look", files=[PHOTO])
            await anyio.sleep(0.5)
            began = anyio.current_time()
            await platform.say(PRIVATE, ALICE, "/stop")
            await scene.sees("Stopped in")
            assert anyio.current_time() - began < 2

    run_seeded(main, 1)


@pytest.mark.parametrize("together", [True, False])
def test_a_stop_ends_the_wait_for_a_file_and_loses_no_words(together: bool) -> None:
    async def main(run: Seeded) -> None:
        platform = SlowFiles()
        scene = ChannelScene(platform, run.clock)
        await scene.pair()
        async with scene.program([[Say("Hello.")]]):
            if together:
                platform.hold()
            await platform.say(PRIVATE, ALICE, "Look at this", files=[PHOTO])
            await anyio.sleep(0.5)
            began = anyio.current_time()
            await platform.say(PRIVATE, ALICE, "/stop")
            platform.release()
            await scene.until(lambda: platform.shown(PRIVATE), "a reply")
            assert anyio.current_time() - began < 2
            await platform.say(PRIVATE, ALICE, "Go on")
            await scene.sees("Hello.")
            assert "Look at this" in str(scene.model.requests[0].messages)

    run_seeded(main, 1)


def test_what_was_confirmed_to_the_platform_is_there_after_a_crash() -> None:
    async def main(run: Seeded) -> None:
        platform = SlowFiles()
        scene = ChannelScene(platform, run.clock)
        await scene.pair()
        async with scene.program([[Say("Hello.")]]):
            await platform.say(PRIVATE, ALICE, "Look at this", files=[PHOTO])
            await anyio.sleep(0.5)
            assert await platform.is_delivered(), "the platform has forgotten it"
            after = scene.crash()
        async with after.program([[Say("Hello.")]]):
            await anyio.sleep(70)
            await after.sees("Hello.")
            await after.check_session(after.session, messages=1, turns=1)

    run_seeded(main, 1)


def test_a_connection_that_breaks_in_a_preview_loses_no_word_of_the_answer() -> None:
    """The key makes the platform keep the words of the first try: the answer is an edit of them."""

    async def main(run: Seeded) -> None:
        platform = FakePlatform(keyed=True)
        scene = ChannelScene(platform, run.clock)
        await scene.pair()
        async with scene.program([Answer([Say("One. "), Wait("on"), Say("Two.")])]):
            platform.break_after_next_send()
            await platform.say(PRIVATE, ALICE, "Begin")
            await scene.model.gate("on").reached()
            await anyio.sleep(2)
            scene.model.gate("on").open()
            await scene.sees("One. Two.")
            await scene.quiet()
            assert [each.text for each in platform.shown(PRIVATE)] == ["One. Two."]

    run_seeded(main, 1)


class GatedRows(MemoryRows):
    """Rows of the pieces of answers wait while `gate` is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = anyio.Event()
        self.waits = anyio.Event()

    async def put(self, rows: Sequence[Row]) -> None:
        if any(row.kind == "piece" and ".0.0" in row.key and row.body for row in rows):
            self.waits.set()
            await self.gate.wait()
        await super().put(rows)


def test_a_stop_while_the_row_of_an_answer_is_written_keeps_it_from_being_sent() -> None:
    async def main(run: Seeded) -> None:
        platform = FakePlatform()
        scene = ChannelScene(platform, run.clock)
        scene.rows = rows = GatedRows()
        await scene.pair()
        async with scene.program([Answer([Say("Late. "), Wait("on")])]):
            await platform.say(PRIVATE, ALICE, "Begin")
            await rows.waits.wait()
            await platform.say(PRIVATE, ALICE, "/stop")
            await scene.until(lambda: not _runs(scene), "the turn is over")
            rows.gate.set()
            await scene.sees("Stopped in")
            await scene.quiet()
            assert not [each for each in platform.shown(PRIVATE) if "Late." in each.text]

    run_seeded(main, 1)


def _runs(scene: ChannelScene) -> bool:
    actor = scene.engine.actor_in_memory(scene.session)
    return actor is not None and actor.turn is not None


def test_a_new_conversation_loses_no_answer_of_the_old_one() -> None:
    async def main(run: Seeded) -> None:
        platform = FakePlatform()
        scene = ChannelScene(platform, run.clock)
        await scene.pair()
        async with scene.program([[Say("Hello.")], [Say("Again.")]]):
            platform.limit(10)
            await platform.say(PRIVATE, ALICE, "Hi")
            await scene.until_settled(1)
            await platform.say(PRIVATE, ALICE, "/stop")
            await platform.say(PRIVATE, ALICE, "/new")
            await platform.say(PRIVATE, ALICE, "Hi again")
            await scene.sees("Again.")
            texts = [each.text for each in platform.shown(PRIVATE)]
            assert sorted(texts) == sorted(["Hello.", words.NOTHING_RUNS, words.NEW, "Again."])

    run_seeded(main, 1)


class BadRows(MemoryRows):
    """Rows of one chat cannot be written for a while."""

    def __init__(self) -> None:
        super().__init__()
        self.broken = ""

    async def put(self, rows: Sequence[Row]) -> None:
        if self.broken and any(row.kind == "piece" and self.broken in row.key for row in rows):
            raise OSError("no space left")
        await super().put(rows)


def test_a_fault_in_one_chat_ends_no_other_and_its_answer_comes_later() -> None:
    async def main(run: Seeded) -> None:
        platform = FakePlatform()
        scene = ChannelScene(platform, run.clock)
        scene.rows = rows = BadRows()
        await scene.pair()
        await scene.pair(OTHER)
        async with scene.program([[Say("Hello.")]], repeat=True):
            rows.broken = "fake:c1"
            await platform.say(PRIVATE, ALICE, "Hi")
            await anyio.sleep(5)
            await platform.say(OTHER, ALICE, "Hi")
            await scene.sees("Hello.", OTHER)
            assert not platform.shown(PRIVATE)
            rows.broken = ""
            await scene.sees("Hello.")
            await scene.check_session(scene.session, messages=1, turns=1)

    run_seeded(main, 1)


class PoisonRows(MemoryRows):
    """Reading one row fails, however often."""

    def __init__(self) -> None:
        super().__init__()
        self.poison = ""

    async def get(self, kind: str, key: str) -> bytes | None:
        if kind == "heard" and self.poison and key.endswith(self.poison):
            raise ValueError("a row that nobody can read")
        return await super().get(kind, key)


def test_a_message_that_can_never_be_handled_is_refused_and_holds_up_nobody() -> None:
    async def main(run: Seeded) -> None:
        platform = FakePlatform()
        scene = ChannelScene(platform, run.clock)
        scene.rows = rows = PoisonRows()
        await scene.pair()
        async with scene.program([[Say("Hello.")]]):
            rows.poison = "p1"
            assert await platform.say(PRIVATE, ALICE, "Bad") == rows.poison
            await platform.say(PRIVATE, ALICE, "Good")
            await anyio.sleep(300)
            await scene.sees("Not taken")
            await scene.sees("Hello.")
            assert await platform.is_delivered()

    run_seeded(main, 1)


def test_a_command_for_another_bot_is_not_ours() -> None:
    async def main(run: Seeded) -> None:
        platform = FakePlatform()
        scene = ChannelScene(platform, run.clock)
        await scene.pair(GROUP)
        async with scene.program([Answer([Wait("on"), Say("Hello.")])]):
            await platform.say(GROUP, ALICE, "Begin")
            await scene.model.gate("on").reached()
            stop = Update("x1", GROUP, ALICE, UpdateKind.COMMAND, "/stop", addressed=False)
            platform._happened(stop)
            await scene.quiet()
            scene.model.gate("on").open()
            await scene.sees("Hello.", GROUP)
            assert len(platform.shown(GROUP)) == 1

    run_seeded(main, 1)


def test_nobody_edits_the_words_of_another() -> None:
    async def main(run: Seeded) -> None:
        platform = FakePlatform()
        scene = ChannelScene(platform, run.clock)
        await scene.pair(GROUP)
        await scene.pair(GROUP, BOB)
        async with scene.program([[Say("One.")], [Say("Two.")]]):
            said = await platform.say(GROUP, ALICE, "Tea")
            await scene.sees("One.", GROUP)
            await platform.edit(GROUP, BOB, said, "Poison")
            await scene.quiet()
            assert len(scene.model.requests) == 1
            # And before it is known: an edit that overtakes its message is that of its sender.
            platform.hold()
            unknown = f"p{platform._number + 2}"
            await platform.edit(GROUP, BOB, unknown, "Poison")
            assert await platform.say(GROUP, ALICE, "Milk") == unknown
            platform.release()
            await scene.sees("Two.", GROUP)
            assert "Poison" not in str(scene.model.requests[-1].messages)

    run_seeded(main, 1)


def test_words_among_people_are_not_kept_when_they_are_edited() -> None:
    async def main(run: Seeded) -> None:
        platform = FakePlatform()
        scene = ChannelScene(platform, run.clock)
        await scene.pair(GROUP)
        async with scene.program([]):
            said = await platform.say(GROUP, ALICE, "among us", addressed=False)
            edited = Update(said, GROUP, ALICE, UpdateKind.EDITED, "a secret", addressed=False)
            platform._happened(edited)
            await scene.quiet()
            assert "secret" not in str(await scene.rows.scan("heard"))

    run_seeded(main, 1)


def test_a_key_that_the_platform_may_have_forgotten_is_marked() -> None:
    async def main(run: Seeded) -> None:
        platform = FakePlatform(keyed=True, key_lasts_s=60)
        scene = ChannelScene(platform, run.clock)
        await scene.pair()
        async with scene.program([[Say("Hello.")]]):
            platform.break_after_next_send()
            platform.limit_after_break_s = 100
            await platform.say(PRIVATE, ALICE, "Hi")
            await anyio.sleep(200)
            await scene.sees("Hello.", count=2)
            texts = [each.text for each in platform.shown(PRIVATE)]
            assert [words.SENT_AGAIN in text for text in texts] == [False, True]

    run_seeded(main, 1)


class Unreachable(FakePlatform):
    """No connection can be made until `up`."""

    up = False

    def open_channel(self) -> FakeChannel:
        return _UnreachableChannel(self)


class _UnreachableChannel(FakeChannel):
    async def send(self, chat: ChatAddress, message: ChatMessage) -> str:
        assert isinstance(self._platform, Unreachable)
        if not self._platform.up:
            raise NotReached("the platform")
        return await super().send(chat, message)


@pytest.mark.parametrize("keyed", [True, False])
def test_what_was_surely_not_sent_has_no_mark(keyed: bool) -> None:
    async def main(run: Seeded) -> None:
        platform = Unreachable(keyed=keyed)
        scene = ChannelScene(platform, run.clock)
        await scene.pair()
        async with scene.program([[Say("Hello.")]]):
            await platform.say(PRIVATE, ALICE, "Hi")
            await anyio.sleep(100)
            health = scene.hub.statuses()["fake"].health
            assert "cannot be reached" in health.error
            platform.up = True
            await anyio.sleep(40)
            assert [each.text for each in platform.shown(PRIVATE)] == ["Hello."]

    run_seeded(main, 1)


class Down(FakePlatform):
    """Its reader cannot connect until `up`."""

    up = False

    def open_channel(self) -> FakeChannel:
        return _DownChannel(self)


class _DownChannel(FakeChannel):
    async def run(self, desk: object) -> None:
        assert isinstance(self._platform, Down)
        if not self._platform.up:
            await anyio.sleep(20)
            raise OSError("nobody answers")
        await super().run(desk)  # type: ignore[arg-type]


def test_a_channel_runs_when_its_platform_has_answered_and_keeps_its_last_error() -> None:
    async def main(run: Seeded) -> None:
        platform = Down()
        scene = ChannelScene(platform, run.clock)
        async with scene.program([]):
            await anyio.sleep(10)
            assert not scene.hub.statuses()["fake"].health.running
            await anyio.sleep(15)
            assert scene.hub.statuses()["fake"].health.error == "nobody answers"
            platform.up = True
            await anyio.sleep(120)
            health = scene.hub.statuses()["fake"].health
            assert health.running
            assert health.error == "nobody answers"

    run_seeded(main, 1)


class PacedFiles(FakePlatform):
    """Each file takes a second."""

    def open_channel(self) -> FakeChannel:
        return _PacedFilesChannel(self)


class _PacedFilesChannel(FakeChannel):
    async def fetch(self, offer: Offer, bytes_max: int) -> bytes:
        await anyio.sleep(1)
        return b"a photo"


def test_the_pictures_of_an_album_are_one_turn_however_slow_they_are() -> None:
    async def main(run: Seeded) -> None:
        platform = PacedFiles()
        scene = ChannelScene(platform, run.clock)
        await scene.pair()
        async with scene.program([[Say("Hello.")]]):
            for number in range(5):
                offer = Offer(f"f{number}", f"{number}.jpg", "image/jpeg")
                await platform.say(PRIVATE, ALICE, "", album="a", files=[offer])
            await anyio.sleep(10)
            await scene.sees("Hello.")
            assert len(scene.model.requests) == 1
            await scene.check_session(scene.session, messages=5, turns=1)

    run_seeded(main, 1)


class SlowRows(MemoryRows):
    """Rows of one kind wait while `gate` is closed: to be written, or to be read by one key."""

    def __init__(self, kind: str, *, key: str = "") -> None:
        super().__init__()
        self.kind = kind
        self.key = key
        self.gate = anyio.Event()
        self.waits = anyio.Event()

    async def put(self, rows: Sequence[Row]) -> None:
        if not self.key and any(row.kind == self.kind for row in rows):
            await self._wait()
        await super().put(rows)

    async def get(self, kind: str, key: str) -> bytes | None:
        if self.key and kind == self.kind and key.endswith(self.key):
            await self._wait()
        return await super().get(kind, key)

    async def _wait(self) -> None:
        self.waits.set()
        await self.gate.wait()


def test_nothing_is_confirmed_to_the_platform_before_it_is_durable() -> None:
    async def main(run: Seeded) -> None:
        platform = FakePlatform()
        scene = ChannelScene(platform, run.clock)
        scene.rows = rows = SlowRows("update")
        await scene.pair()
        async with scene.program([[Say("Hello.")]]):
            await platform.say(PRIVATE, ALICE, "Hi")
            await rows.waits.wait()
            await anyio.sleep(10)
            assert not await platform.is_delivered()
            rows.gate.set()
            await scene.sees("Hello.")
            assert await platform.is_delivered()

    run_seeded(main, 1)


def test_a_stop_does_not_wait_for_what_stands_before_it() -> None:
    """The message before it cannot be handled for now."""

    async def main(run: Seeded) -> None:
        platform = FakePlatform()
        scene = ChannelScene(platform, run.clock)
        scene.rows = rows = SlowRows("heard", key="p2")
        await scene.pair()
        async with scene.program([Answer([Say("One. "), Wait("on"), Say("Late.")])]):
            await platform.say(PRIVATE, ALICE, "Begin")
            await scene.model.gate("on").reached()
            assert await platform.say(PRIVATE, ALICE, "And this") == "p2"
            await rows.waits.wait()
            await platform.say(PRIVATE, ALICE, "/stop")
            await anyio.sleep(1)
            assert not _runs(scene)
            rows.gate.set()
            await scene.sees("Stopped in")
            await scene.quiet()
            assert not [each for each in platform.shown(PRIVATE) if "Late." in each.text]

    run_seeded(main, 1)


def test_a_preview_does_not_become_the_answer_after_a_stop() -> None:
    """The answer was complete, and waited for the rate limit, when the stop came."""
    running = anyio.Event()

    async def work() -> str:
        """Works for ever."""
        running.set()
        await anyio.sleep_forever()
        return "done"

    async def main(run: Seeded) -> None:
        platform = FakePlatform()
        scene = ChannelScene(platform, run.clock)
        await scene.pair()
        script = [Answer([Say("One. "), Wait("on"), Say("Late."), Call("work", {})])]
        async with scene.program(script, tools=[work]):
            await platform.say(PRIVATE, ALICE, "Begin")
            await scene.sees("One.")
            platform.limit(platform.limit_s)
            scene.model.gate("on").open()
            await running.wait()
            await platform.say(PRIVATE, ALICE, "/stop")
            await scene.sees("Stopped in")
            await scene.quiet()
            assert not [each for each in platform.shown(PRIVATE) if "Late." in str(each.texts)]

    run_seeded(main, 1)


class Refusing(FakePlatform):
    """Refuses words for good."""

    refused = "Bad."
    refusals = 0

    def take(self, chat: ChatAddress, message: ChatMessage) -> str:
        if self.refused and self.refused in message.text:
            self.refusals += 1
            raise NotDelivered("not these words")
        return super().take(chat, message)


def test_what_was_refused_for_good_is_not_tried_again_by_the_next_program() -> None:
    running = anyio.Event()

    async def work() -> str:
        """Works for ever."""
        running.set()
        await anyio.sleep_forever()
        return "done"

    async def main(run: Seeded) -> None:
        platform = Refusing()
        scene = ChannelScene(platform, run.clock)
        await scene.pair()
        script = [Answer([Say("Bad."), Call("work", {})])]
        async with scene.program(script, tools=[work]):
            await platform.say(PRIVATE, ALICE, "Begin")
            await running.wait()
            await scene.until(lambda: platform.refusals, "it was tried")
            await scene.quiet()
            after = scene.crash()
        platform.refused = ""
        async with after.program([]):
            await after.sees(words.CRASHED)
            await after.quiet()
            assert [each.text for each in platform.shown(PRIVATE)] == [words.CRASHED]

    run_seeded(main, 1)


def test_an_unsent_answer_is_sent_by_the_next_program_though_nothing_else_waits_there() -> None:
    """Its message is handled, and its row is gone: only the chat itself says that it owes."""

    async def main(run: Seeded) -> None:
        platform = FakePlatform()
        scene = ChannelScene(platform, run.clock)
        await scene.pair()
        await scene.pair(OTHER)
        async with scene.program([[Say("Hello.")]], repeat=True):
            platform.limit(30)
            await platform.say(PRIVATE, ALICE, "Hi")
            await scene.until_settled(1)
            await platform.say(OTHER, ALICE, "Hi")
            await scene.until(lambda: len(scene.model.requests) == 2, "the other one runs")
            assert not [key for key, body in await scene.rows.scan("update") if b"c1" in body]
            after = scene.crash()
        async with after.program([]):
            await anyio.sleep(30)
            await after.sees("Hello.")
            await after.sees("Hello.", OTHER)

    run_seeded(main, 1)


def test_a_reply_that_was_not_sent_is_sent_by_the_next_program_once() -> None:
    async def main(run: Seeded) -> None:
        platform = FakePlatform(keyed=False)
        scene = ChannelScene(platform, run.clock)
        await scene.pair()
        async with scene.program([]):
            platform.limit(10)
            await platform.say(PRIVATE, ALICE, "/status")
            await anyio.sleep(5)
            assert not platform.shown(PRIVATE), "the limit still holds"
            after = scene.crash()
        async with after.program([]):
            await after.sees("Idle.")
            await platform.redeliver()
            await after.quiet()
            assert [each.text for each in platform.shown(PRIVATE)] == ["Idle."]

    run_seeded(main, 1)
