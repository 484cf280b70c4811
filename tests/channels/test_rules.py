"""Rules of the shared part that the scenarios do not reach. Each was broken once, and its test
failed."""

from __future__ import annotations

import anyio

from bargein.channels import words
from bargein.channels.access import ChannelAccess
from bargein.channels.contract import ChatAddress, ChatKind, ChatRate, Update, UpdateKind
from bargein.channels.conversation import LANE_MAX
from bargein.channels.hub import HEARD_S
from bargein.channels.outbox import Outbox, Preview
from bargein.channels.rows import Ledger, MemoryRows
from bargein.models.script import Answer, Call, Say, Wait
from bargein.testing.channel_conformance import ChannelScene, FakePlatform
from bargein.testing.seeded import Seeded, run_seeded
from tests.channels.test_faults import SlowRows

ALICE, PRIVATE = FakePlatform.alice, FakePlatform.private


class CountedRefusals(FakePlatform):
    refusals = 0

    def call(self, what: str, chat: ChatAddress) -> None:
        if anyio.current_time() < self._limited_until:
            self.refusals += 1
        super().call(what, chat)


def test_a_platform_that_asks_to_wait_is_not_asked_again_before() -> None:
    async def main(run: Seeded) -> None:
        platform = CountedRefusals()
        scene = ChannelScene(platform, run.clock)
        await scene.pair()
        async with scene.program([[Say("Hello.")]]):
            platform.limit(15)
            await platform.say(PRIVATE, ALICE, "Hi")
            await scene.sees("Hello.")
            assert 0 < platform.refusals < 3

    run_seeded(main, 1)


def test_a_reply_finds_a_call_left_while_previews_are_shown() -> None:
    async def main(run: Seeded) -> None:
        platform = FakePlatform(rate=ChatRate(per_s=0.1, burst=3))
        scene = ChannelScene(platform, run.clock)
        await scene.pair()
        async with scene.program([[Say("word " * 30, pace_s=2.0), Wait("on")]]):
            await platform.say(PRIVATE, ALICE, "Tell me")
            await anyio.sleep(25)
            assert platform.shown(PRIVATE), "it is previewed"
            began = anyio.current_time()
            await platform.say(PRIVATE, ALICE, "/status")
            await scene.sees("Working on")
            assert anyio.current_time() - began < 1

    run_seeded(main, 1)


def test_a_reply_goes_before_what_is_left_of_a_long_answer() -> None:
    async def main(run: Seeded) -> None:
        platform = FakePlatform(rate=ChatRate(per_s=0.5, burst=1))
        scene = ChannelScene(platform, run.clock)
        await scene.pair()
        long = "\n\n".join(f"Paragraph {number}: {'word ' * 30}" for number in range(6))
        async with scene.program([[Say(long)]]):
            await platform.say(PRIVATE, ALICE, "Tell me")
            await scene.sees("Paragraph 0")
            await platform.say(PRIVATE, ALICE, "/status")
            await scene.sees("Paragraph 5")
            await scene.quiet()
            texts = [each.text for each in platform.shown(PRIVATE)]
            assert any("Idle." in text for text in texts[:4]), texts
            assert len(texts) == 7

    run_seeded(main, 1)


def test_of_two_edits_in_the_wrong_order_the_later_holds() -> None:
    async def main(run: Seeded) -> None:
        platform = FakePlatform()
        scene = ChannelScene(platform, run.clock)
        await scene.pair()
        async with scene.program([[Wait("on"), Say("One.")], [Say("Two.")]]):
            await platform.say(PRIVATE, ALICE, "Begin")
            await scene.model.gate("on").reached()
            waits = await platform.say(PRIVATE, ALICE, "/queue A")
            await scene.quiet()
            for text, version in (("C", 3.0), ("B", 2.0)):
                kind = UpdateKind.EDITED
                platform._happened(Update(waits, PRIVATE, ALICE, kind, text, version=version))
            await scene.quiet()
            session = await scene.engine.session(scene.session)
            (waiting,) = (await session.state()).waiting
            assert waiting.message.text == "C"
            scene.model.gate("on").open()
            await scene.sees("Two.")

    run_seeded(main, 1)


def test_a_code_is_no_message_when_it_is_delivered_again() -> None:
    async def main(run: Seeded) -> None:
        platform = FakePlatform(keyed=False)
        scene = ChannelScene(platform, run.clock)
        access = ChannelAccess(Ledger(scene.rows, platform.name), scene.now)
        code = await access.make_code(ChatKind.PRIVATE)
        async with scene.program([[Say("Hello.")]]):
            await platform.say(PRIVATE, ALICE, f"/start {code}")
            await scene.sees(words.PAIRED)
            await scene.quiet()
            await platform.redeliver()
            await scene.quiet()
            assert not scene.model.requests
            assert [each.text for each in platform.shown(PRIVATE)] == [words.PAIRED]

    run_seeded(main, 1)


def test_nothing_of_a_stopped_turn_is_previewed() -> None:
    """Whatever its session says of it later."""

    async def main(run: Seeded) -> None:
        platform = FakePlatform()
        ledger = Ledger(MemoryRows(), "fake")
        outbox = Outbox(platform.open_channel(), PRIVATE, ledger, "s", {}, lambda why: None)

        async def settled(done: object) -> None:
            raise AssertionError(done)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(outbox.run, settled, lambda: None)
            outbox.put_preview(Preview("t1.0.0", "t1", "Early."), working=False)
            outbox.stop("t1")
            outbox.put_preview(Preview("t2.0.0", "t2", "Next."), working=False)
            outbox.stop("t1")
            await anyio.sleep(5)
            assert [each.texts for each in platform.shown(PRIVATE)] == [["Next. …"]]
            outbox.put_preview(Preview("t2.0.0", "t2", "Next one."), working=False)
            outbox.stop("t2")
            await anyio.sleep(5)
            assert [each.texts for each in platform.shown(PRIVATE)] == [["Next. …"]]
            tasks.cancel_scope.cancel()

    run_seeded(main, 1)


def test_what_was_sent_is_not_sent_again_when_a_later_turn_is_cut_off() -> None:
    async def main(run: Seeded) -> None:
        platform = FakePlatform(keyed=False)
        scene = ChannelScene(platform, run.clock)
        await scene.pair()
        script = [Answer([Wait("on"), Say("One.")]), Answer([Call("work", {})])]

        async def work() -> str:
            """Works for ever."""
            await anyio.sleep_forever()
            return "done"

        async with scene.program(script, tools=[work]):
            await platform.say(PRIVATE, ALICE, "A")
            await scene.model.gate("on").reached()
            await platform.say(PRIVATE, ALICE, "/queue B")
            await scene.quiet()
            scene.model.gate("on").open()
            await scene.until(lambda: len(scene.model.requests) == 2, "the second turn runs")
            await scene.sees("One.")
            await scene.quiet()
            after = scene.crash()
        async with after.program([]):
            await after.sees(words.CRASHED)
            await after.quiet()
            assert [each.text for each in platform.shown(PRIVATE)] == ["One.", words.CRASHED]

    run_seeded(main, 1)


def test_what_was_heard_is_forgotten_after_a_month() -> None:
    async def main(run: Seeded) -> None:
        platform = FakePlatform()
        scene = ChannelScene(platform, run.clock)
        scene.rows = rows = MemoryRows(now=scene.now)
        await scene.pair()
        async with scene.program([[Say("Hello.")]], repeat=True):
            first = await platform.say(PRIVATE, ALICE, "Hi")
            await scene.sees("Hello.")
            await scene.quiet()
            assert [key for key, _ in await rows.scan("heard") if key.endswith(first)]
            await anyio.sleep(HEARD_S + 1)
            await platform.say(PRIVATE, ALICE, "Hi again")
            await scene.sees("Hello.", count=2)
            await scene.quiet()
            assert not [key for key, _ in await rows.scan("heard") if key.endswith(first)]

    run_seeded(main, 1)


def test_a_reply_that_takes_long_is_sent_though_nothing_else_goes_on() -> None:
    async def main(run: Seeded) -> None:
        platform = FakePlatform()
        scene = ChannelScene(platform, run.clock)
        scene.rows = rows = SlowRows("piece")
        await scene.pair()
        async with scene.program([]):
            await platform.say(PRIVATE, ALICE, "/undo")
            await rows.waits.wait()
            await scene.quiet()
            rows.gate.set()
            await scene.sees("Not undone")

    run_seeded(main, 1)


def test_a_stop_finds_room_where_too_much_waits() -> None:
    async def main(run: Seeded) -> None:
        platform = FakePlatform()
        scene = ChannelScene(platform, run.clock)
        scene.rows = rows = SlowRows("heard", key="p2")
        await scene.pair()
        async with scene.program([Answer([Say("One. "), Wait("on"), Say("Late.")])]):
            await platform.say(PRIVATE, ALICE, "Begin")
            await scene.model.gate("on").reached()
            for _ in range(LANE_MAX + 1):
                await platform.say(PRIVATE, ALICE, "And this")
            await rows.waits.wait()
            (refused,) = await scene.sees("Not taken")
            assert "too much waits" in refused.text
            await platform.say(PRIVATE, ALICE, "/stop")
            await scene.quiet()
            actor = scene.engine.actor_in_memory(scene.session)
            assert actor is not None
            assert actor.turn is None
            assert len(await scene.sees("Not taken")) == 1
            assert scene.hub.statuses()["fake"].unhandled == LANE_MAX + 1

    run_seeded(main, 1)
