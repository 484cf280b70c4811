"""Messages, bursts, albums, edits, redeliveries, strangers."""

import anyio

from bargein.channels import words
from bargein.channels.contract import ChatAddress
from bargein.models.script import Answer, Say, Wait
from bargein.testing.channel_conformance.scene import ChannelCheck, ChannelScene

HELLO = [Answer([Say("Hello.")])]
TWICE = [Answer([Say("One.")]), Answer([Say("Two.")])]
CHATS = 1000


async def a_message_is_answered_once(scene: ChannelScene) -> None:
    async with scene.program(HELLO):
        await scene.platform.say(scene.platform.private, scene.platform.alice, "Hi")
        await scene.sees("Hello.")
        await scene.platform.redeliver()
        await scene.quiet()
        assert len(scene.platform.shown(scene.platform.private)) == 1
        await scene.check_session(scene.session, messages=1, turns=1)


async def a_burst_is_one_turn(scene: ChannelScene) -> None:
    async with scene.program(HELLO):
        scene.platform.hold()
        for number in range(5):
            await scene.platform.say(scene.platform.private, scene.platform.alice, f"word {number}")
        scene.platform.release()
        await scene.sees("Hello.")
        await scene.platform.redeliver()
        await scene.quiet()
        assert len(scene.platform.shown(scene.platform.private)) == 1
        await scene.check_session(scene.session, messages=5, turns=1)


async def two_messages_within_a_millisecond_are_never_two_runs(scene: ChannelScene) -> None:
    async with scene.program(HELLO, repeat=True):
        async with anyio.create_task_group() as people:
            for text in ("first", "second"):
                people.start_soon(
                    scene.platform.say, scene.platform.private, scene.platform.alice, text
                )
        await scene.sees("Hello.")
        await scene.platform.redeliver()
        await scene.quiet()
        await scene.check_session(scene.session, messages=2)


async def an_album_is_one_turn(scene: ChannelScene) -> None:
    async with scene.program(HELLO):
        scene.platform.hold()
        for number in range(5):
            await scene.platform.say(
                scene.platform.private, scene.platform.alice, f"photo {number}", album="a1"
            )
        scene.platform.release()
        await scene.sees("Hello.")
        await scene.platform.redeliver()
        await scene.quiet()
        await scene.check_session(scene.session, messages=5, turns=1)


async def an_edit_before_taking_changes_the_inbox(scene: ChannelScene) -> None:
    async with scene.program([Answer([Wait("on"), Say("One.")]), Answer([Say("Two.")])]):
        await scene.platform.say(scene.platform.private, scene.platform.alice, "First")
        await scene.model.gate("on").reached()
        waits = await scene.platform.say(
            scene.platform.private, scene.platform.alice, "/queue Secnod"
        )
        await scene.until(lambda: _waiting(scene), "it waits")
        await scene.platform.edit(scene.platform.private, scene.platform.alice, waits, "Second")
        await scene.quiet()
        scene.model.gate("on").open()
        await scene.sees("Two.")
        await scene.platform.redeliver()
        await scene.quiet()
        told = str(scene.model.requests[-1].messages)
        assert "Second" in told, told
        assert "Secnod" not in told, told
        await scene.check_session(scene.session, messages=2, turns=2)


def _waiting(scene: ChannelScene) -> bool:
    actor = scene.engine.actor_in_memory(scene.session)
    return actor is not None and bool(actor.state.waiting)


async def an_edit_after_taking_is_a_steer(scene: ChannelScene) -> None:
    async with scene.program(TWICE):
        said = await scene.platform.say(scene.platform.private, scene.platform.alice, "Tea")
        await scene.sees("One.")
        await scene.platform.edit(scene.platform.private, scene.platform.alice, said, "Tea")
        await scene.quiet()
        assert len(scene.model.requests) == 1, "an edit of markup alone says nothing"
        await scene.platform.edit(scene.platform.private, scene.platform.alice, said, "Coffee")
        await scene.sees("Two.")
        await scene.platform.redeliver()
        await scene.quiet()
        assert "Coffee" in str(scene.model.requests[-1].messages[-1])
        await scene.check_session(scene.session, messages=2, turns=2)


async def an_edited_command_never_runs_again(scene: ChannelScene) -> None:
    async with scene.program([Answer([Wait("on"), Say("One.")])]):
        stop = await scene.platform.say(scene.platform.private, scene.platform.alice, "/stop")
        await scene.sees(words.NOTHING_RUNS)
        await scene.platform.say(scene.platform.private, scene.platform.alice, "Go")
        await scene.model.gate("on").reached()
        await scene.platform.edit(scene.platform.private, scene.platform.alice, stop, "/stop ")
        await scene.platform.edit(scene.platform.private, scene.platform.alice, stop, "stop")
        await scene.platform.redeliver()
        await scene.quiet()
        scene.model.gate("on").open()
        await scene.sees("One.")
        await scene.check_session(scene.session, messages=1, turns=1)


async def a_stranger_gets_silence(scene: ChannelScene) -> None:
    async with scene.program(HELLO):
        mallory, theirs = scene.platform.stranger, scene.platform.theirs
        for text in ("Hi", "/stop", "/help", "/start", "AAAA-BBBB"):
            await scene.platform.say(theirs, mallory, text)
        await scene.quiet()
        assert not scene.platform.shown(theirs)
        assert not await scene.sessions()


async def a_stranger_in_a_paired_group_gets_silence(scene: ChannelScene) -> None:
    await scene.pair(scene.platform.group, scene.platform.alice)
    async with scene.program([Answer([Wait("on"), Say("Hello.")])]):
        await scene.platform.say(scene.platform.group, scene.platform.bob, "@bot do it")
        await scene.platform.say(
            scene.platform.group, scene.platform.alice, "among us", addressed=False
        )
        await scene.quiet()
        assert not scene.model.requests
        await scene.platform.say(scene.platform.group, scene.platform.alice, "@bot do it")
        await scene.model.gate("on").reached()
        await scene.platform.say(scene.platform.group, scene.platform.bob, "/stop")
        await scene.quiet()
        scene.model.gate("on").open()
        await scene.sees("Hello.", scene.platform.group)
        assert f"{scene.platform.alice.name}: @bot do it" in str(scene.model.requests[0].messages)


async def a_private_pairing_says_nothing_about_groups(scene: ChannelScene) -> None:
    async with scene.program(HELLO):
        await scene.platform.say(scene.platform.group, scene.platform.alice, "@bot do it")
        await scene.quiet()
        assert not scene.platform.shown(scene.platform.group)


async def many_chats_at_once(scene: ChannelScene) -> None:
    chats = await scene.platform.chats(CHATS)
    for chat_id in {chat.id for chat in chats}:
        await scene.pair(ChatAddress(chat_id))
    async with scene.program(HELLO, repeat=True):
        for chat in chats:
            await scene.platform.say(chat, scene.platform.alice, "Hi")
        for chat in chats:
            await scene.sees("Hello.", chat)
        await scene.platform.redeliver()
        await scene.quiet()
        assert all(len(scene.platform.shown(chat)) == 1 for chat in chats)
        for chat in chats:
            await scene.check_session(scene.session_of(chat), messages=1, turns=1)


INCOMING_CHECKS = tuple(
    map(
        ChannelCheck,
        (
            a_message_is_answered_once,
            a_burst_is_one_turn,
            two_messages_within_a_millisecond_are_never_two_runs,
            an_album_is_one_turn,
            an_edit_before_taking_changes_the_inbox,
            an_edit_after_taking_is_a_steer,
            an_edited_command_never_runs_again,
            a_stranger_gets_silence,
            a_stranger_in_a_paired_group_gets_silence,
            a_private_pairing_says_nothing_about_groups,
            many_chats_at_once,
        ),
    )
)
