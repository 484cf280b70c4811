"""A stop in every phase of a turn: it works, gets a reply, and nothing of the turn follows."""

import anyio

from bargein.channels import words
from bargein.models.script import Answer, Call, Say, Wait
from bargein.testing.channel_conformance.scene import ChannelCheck, ChannelScene

STOPPED = "Stopped in"
AFTER = Answer([Say("After.")])


async def _goes_on(scene: ChannelScene, messages: int) -> None:
    """Nothing of the stopped turn comes, and the next message is answered as ever."""
    await scene.platform.redeliver()
    await scene.quiet()
    assert not [
        each for each in scene.platform.shown(scene.platform.private) if "Late." in each.text
    ]
    await scene.platform.say(scene.platform.private, scene.platform.alice, "Go on")
    await scene.sees("After.")
    await scene.platform.redeliver()
    await scene.quiet()
    assert len(await scene.sees(STOPPED)) == 1, "one reply to one stop"
    await scene.check_session(scene.session, messages=messages)


async def stop_while_starting(scene: ChannelScene) -> None:
    """The message and the stop come in one delivery: nothing was accepted yet."""
    async with scene.program([Answer([Say("Late.")], when="never"), AFTER]):
        scene.platform.hold()
        await scene.platform.say(scene.platform.private, scene.platform.alice, "Begin")
        await scene.platform.say(scene.platform.private, scene.platform.alice, "/stop")
        scene.platform.release()
        await scene.until(lambda: scene.platform.shown(scene.platform.private), "a reply")
        await scene.quiet()
        (reply,) = scene.platform.shown(scene.platform.private)
        assert any(each in reply.text for each in (STOPPED, words.NOTHING_RUNS, words.NOTHING_RAN))
        await scene.platform.say(scene.platform.private, scene.platform.alice, "Go on")
        await scene.sees("After.")
        await scene.check_session(scene.session, messages=2)


async def stop_while_streaming(scene: ChannelScene) -> None:
    async with scene.program([Answer([Say("Early. "), Wait("on"), Say("Late.")]), AFTER]):
        await scene.platform.say(scene.platform.private, scene.platform.alice, "Begin")
        await scene.model.gate("on").reached()
        await scene.platform.say(scene.platform.private, scene.platform.alice, "Stop!")
        await scene.sees(STOPPED)
        await _goes_on(scene, 2)


async def stop_in_a_command(scene: ChannelScene) -> None:
    running = anyio.Event()

    async def work() -> str:
        """Works for ever."""
        running.set()
        await anyio.sleep_forever()
        return "done"

    script = [Answer([Call("work", {})]), AFTER]
    async with scene.program(script, tools=[work]):
        await scene.platform.say(scene.platform.private, scene.platform.alice, "Begin")
        await running.wait()
        await scene.platform.say(scene.platform.private, scene.platform.alice, "/stop")
        await scene.sees(STOPPED)
        await _goes_on(scene, 2)


async def stop_in_a_sub_agent(scene: ChannelScene) -> None:
    from bargein.tools.delegate import delegate_tool

    script = [
        Answer([Call("delegate", {"tasks": [{"task": "below"}]})], when="Begin"),
        Answer([Say("Early. "), Wait("on"), Say("Late.")], when="below"),
        AFTER,
    ]
    async with scene.program(script, tools=[delegate_tool()]):
        await scene.platform.say(scene.platform.private, scene.platform.alice, "Begin")
        await scene.model.gate("on").reached()
        await scene.platform.say(scene.platform.private, scene.platform.alice, "/stop")
        await scene.sees(STOPPED)
        await _goes_on(scene, 2)


async def stop_during_a_rate_limit(scene: ChannelScene) -> None:
    """The turn is stopped at once though nothing can be said; its answers do not follow later."""
    script = [Answer([Say("Late."), Call("work", {})]), AFTER]
    running = anyio.Event()

    async def work() -> str:
        """Works for ever."""
        running.set()
        await anyio.sleep_forever()
        return "done"

    async with scene.program(script, tools=[work]):
        scene.platform.limit(scene.platform.limit_s)
        await scene.platform.say(scene.platform.private, scene.platform.alice, "Begin")
        await running.wait()
        await scene.platform.say(scene.platform.private, scene.platform.alice, "/stop")
        await scene.until(lambda: not _runs(scene), "the turn is over")
        assert not scene.platform.shown(scene.platform.private), "the limit still holds"
        await scene.sees(STOPPED)
        await _goes_on(scene, 2)


def _runs(scene: ChannelScene) -> bool:
    actor = scene.engine.actor_in_memory(scene.session)
    return actor is not None and actor.turn is not None


async def stop_at_the_end_of_a_turn(scene: ChannelScene) -> None:
    """Too late is said, and the answer of a turn that was not stopped is not held back."""
    async with scene.program([Answer([Say("AllSent.")]), AFTER]):
        scene.platform.limit(scene.platform.limit_s)
        await scene.platform.say(scene.platform.private, scene.platform.alice, "Begin")
        await scene.until(lambda: scene.model.requests and not _runs(scene), "the turn is over")
        await scene.platform.say(scene.platform.private, scene.platform.alice, "/stop")
        await scene.sees(words.NOTHING_RUNS)
        await scene.sees("AllSent.")
        await scene.platform.redeliver()
        await scene.quiet()
        assert len(scene.platform.shown(scene.platform.private)) == 2
        await scene.check_session(scene.session, messages=1, turns=1)


async def a_stop_while_an_album_gathers_holds_it(scene: ChannelScene) -> None:
    async with scene.program([AFTER]):
        scene.platform.hold()
        for number in range(3):
            await scene.platform.say(
                scene.platform.private, scene.platform.alice, f"photo {number}", album="a1"
            )
        await scene.platform.say(scene.platform.private, scene.platform.alice, "/stop")
        scene.platform.release()
        (reply,) = await scene.sees(words.NOTHING_RAN)
        assert "What was just sent is held (3 messages)" in reply.text, reply
        await scene.quiet()
        assert not scene.model.requests
        await scene.platform.say(scene.platform.private, scene.platform.alice, "Go on")
        await scene.sees("After.")
        await scene.check_session(scene.session, messages=4)


async def what_a_stop_held_goes_on_by_a_command(scene: ChannelScene) -> None:
    async with scene.program([AFTER]):
        scene.platform.hold()
        await scene.platform.say(scene.platform.private, scene.platform.alice, "Begin", album="a1")
        await scene.platform.say(scene.platform.private, scene.platform.alice, "/stop")
        scene.platform.release()
        (reply,) = await scene.sees(words.NOTHING_RAN)
        assert "(1 message): /continue" in reply.text, reply
        await scene.quiet()
        assert not scene.model.requests
        await scene.platform.say(scene.platform.private, scene.platform.alice, "/continue")
        await scene.sees(words.GOES_ON)
        await scene.sees("After.")
        await scene.platform.say(scene.platform.private, scene.platform.alice, "/continue")
        await scene.sees(words.NOTHING_HELD)
        await scene.platform.redeliver()
        await scene.quiet()
        assert len(await scene.sees(words.GOES_ON)) == 1
        await scene.check_session(scene.session, messages=1, turns=1)


async def redirect_and_new(scene: ChannelScene) -> None:
    """Each stops what runs, and what was stopped says nothing more."""
    script = [Answer([Say("Early. "), Wait("on"), Say("Late.")]), Answer([Say("B.")]), AFTER]
    async with scene.program(script):
        await scene.platform.say(scene.platform.private, scene.platform.alice, "Begin")
        await scene.model.gate("on").reached()
        await scene.platform.say(scene.platform.private, scene.platform.alice, "/redirect Do B")
        await scene.sees("B.")
        await scene.platform.say(scene.platform.private, scene.platform.alice, "/new")
        await scene.sees(words.NEW)
        await scene.platform.say(scene.platform.private, scene.platform.alice, "Again")
        await scene.sees("After.")
        await scene.platform.redeliver()
        await scene.quiet()
        told = scene.model.requests[-1].messages
        assert len(told) == 1, f"a new conversation: {told}"
        await scene.check_session(scene.session_of(scene.platform.private, 2), messages=1, turns=1)


STOP_CHECKS = tuple(
    map(
        ChannelCheck,
        (
            stop_while_starting,
            stop_while_streaming,
            stop_in_a_command,
            stop_in_a_sub_agent,
            stop_during_a_rate_limit,
            stop_at_the_end_of_a_turn,
            a_stop_while_an_album_gathers_holds_it,
            what_a_stop_held_goes_on_by_a_command,
            redirect_and_new,
        ),
    )
)
