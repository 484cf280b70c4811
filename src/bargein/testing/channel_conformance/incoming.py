"""Messages, bursts, albums, edits, redeliveries, strangers."""

from bargein.channels import words
from bargein.channels.contract import ChatAddress, Person
from bargein.models.script import Answer, Say, Wait
from bargein.testing.channel_conformance.platform import ALICE, BOB, GROUP, PRIVATE
from bargein.testing.channel_conformance.scene import ChannelCheck, ChannelScene

HELLO = [Answer([Say("Hello.")])]
TWICE = [Answer([Say("One.")]), Answer([Say("Two.")])]
CHATS = 1000


async def a_message_is_answered_once(scene: ChannelScene) -> None:
    async with scene.program(HELLO):
        await scene.platform.say(PRIVATE, ALICE, "Hi")
        await scene.sees("Hello.")
        await scene.platform.redeliver()
        await scene.quiet()
        assert len(scene.platform.shown(PRIVATE)) == 1
        await scene.check_session(f"{scene.name}:{PRIVATE.id}", messages=1, turns=1)


async def a_burst_is_one_turn(scene: ChannelScene) -> None:
    async with scene.program(HELLO):
        for number in range(5):
            await scene.platform.say(PRIVATE, ALICE, f"word {number}")
        await scene.sees("Hello.")
        await scene.platform.redeliver()
        await scene.quiet()
        assert len(scene.platform.shown(PRIVATE)) == 1
        await scene.check_session(f"{scene.name}:{PRIVATE.id}", messages=5, turns=1)


async def an_album_is_one_turn(scene: ChannelScene) -> None:
    async with scene.program(HELLO):
        for number in range(5):
            await scene.platform.say(PRIVATE, ALICE, f"photo {number}", album="a1")
        await scene.sees("Hello.")
        await scene.platform.redeliver()
        await scene.quiet()
        await scene.check_session(f"{scene.name}:{PRIVATE.id}", messages=5, turns=1)


async def an_edit_before_taking_changes_the_inbox(scene: ChannelScene) -> None:
    async with scene.program([Answer([Wait("on"), Say("One.")]), Answer([Say("Two.")])]):
        await scene.platform.say(PRIVATE, ALICE, "First")
        await scene.model.gate("on").reached()
        waits = await scene.platform.say(PRIVATE, ALICE, "/queue Secnod")
        await scene.until(lambda: _waiting(scene), "it waits")
        await scene.platform.edit(PRIVATE, ALICE, waits, "Second")
        await scene.quiet()
        scene.model.gate("on").open()
        await scene.sees("Two.")
        await scene.platform.redeliver()
        await scene.quiet()
        told = str(scene.model.requests[-1].messages)
        assert "Second" in told, told
        assert "Secnod" not in told, told
        await scene.check_session(f"{scene.name}:{PRIVATE.id}", messages=2, turns=2)


def _waiting(scene: ChannelScene) -> bool:
    actor = scene.engine.actor_in_memory(f"{scene.name}:{PRIVATE.id}")
    return actor is not None and bool(actor.state.waiting)


async def an_edit_after_taking_is_a_steer(scene: ChannelScene) -> None:
    async with scene.program(TWICE):
        said = await scene.platform.say(PRIVATE, ALICE, "Tea")
        await scene.sees("One.")
        await scene.platform.edit(PRIVATE, ALICE, said, "Tea")
        await scene.quiet()
        assert len(scene.model.requests) == 1, "an edit of markup alone says nothing"
        await scene.platform.edit(PRIVATE, ALICE, said, "Coffee")
        await scene.sees("Two.")
        await scene.platform.redeliver()
        await scene.quiet()
        assert "Coffee" in str(scene.model.requests[-1].messages[-1])
        await scene.check_session(f"{scene.name}:{PRIVATE.id}", messages=2, turns=2)


async def an_edited_command_never_runs_again(scene: ChannelScene) -> None:
    async with scene.program([Answer([Wait("on"), Say("One.")])]):
        stop = await scene.platform.say(PRIVATE, ALICE, "/stop")
        await scene.sees(words.NOTHING_RUNS)
        await scene.platform.say(PRIVATE, ALICE, "Go")
        await scene.model.gate("on").reached()
        await scene.platform.edit(PRIVATE, ALICE, stop, "/stop ")
        await scene.platform.edit(PRIVATE, ALICE, stop, "stop")
        await scene.platform.redeliver()
        await scene.quiet()
        scene.model.gate("on").open()
        await scene.sees("One.")
        await scene.check_session(f"{scene.name}:{PRIVATE.id}", messages=1, turns=1)


async def a_stranger_gets_silence(scene: ChannelScene) -> None:
    async with scene.program(HELLO):
        mallory, theirs = Person("666", "Alice"), ChatAddress("c666")
        for text in ("Hi", "/stop", "/help", "/start", "AAAA-BBBB"):
            await scene.platform.say(theirs, mallory, text)
        await scene.quiet()
        assert not scene.platform.shown(theirs)
        assert not await scene.sessions()


async def a_stranger_in_a_paired_group_gets_silence(scene: ChannelScene) -> None:
    await scene.pair(GROUP, ALICE)
    async with scene.program([Answer([Wait("on"), Say("Hello.")])]):
        await scene.platform.say(GROUP, BOB, "@bot do it")
        await scene.platform.say(GROUP, ALICE, "among us", addressed=False)
        await scene.quiet()
        assert not scene.model.requests
        await scene.platform.say(GROUP, ALICE, "@bot do it")
        await scene.model.gate("on").reached()
        await scene.platform.say(GROUP, BOB, "/stop")
        await scene.quiet()
        scene.model.gate("on").open()
        await scene.sees("Hello.", GROUP)
        assert "Alice: @bot do it" in str(scene.model.requests[0].messages)


async def a_private_pairing_says_nothing_about_groups(scene: ChannelScene) -> None:
    async with scene.program(HELLO):
        await scene.platform.say(GROUP, ALICE, "@bot do it")
        await scene.quiet()
        assert not scene.platform.shown(GROUP)


async def many_chats_at_once(scene: ChannelScene) -> None:
    chats = [ChatAddress(f"many{number}") for number in range(CHATS)]
    for chat in chats:
        await scene.pair(chat, ALICE)
    async with scene.program(HELLO, repeat=True):
        for chat in chats:
            await scene.platform.say(chat, ALICE, "Hi")
        for chat in chats:
            await scene.sees("Hello.", chat)
        await scene.platform.redeliver()
        await scene.quiet()
        assert all(len(scene.platform.shown(chat)) == 1 for chat in chats)
        for chat in chats:
            await scene.check_session(f"{scene.name}:{chat.id}", messages=1, turns=1)


INCOMING_CHECKS = tuple(
    map(
        ChannelCheck,
        (
            a_message_is_answered_once,
            a_burst_is_one_turn,
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
