"""Answers, long ones, questions; restarts and broken connections in the middle of them."""

import anyio

from bargein.channels import words
from bargein.models.script import Answer, Call, Say, Wait
from bargein.testing.channel_conformance.platform import ALICE, PRIVATE
from bargein.testing.channel_conformance.scene import ChannelCheck, ChannelScene

ASKS = [
    Answer([Call("ask", {"question": "Tea?", "choices": ["yes", "no"]})]),
    Answer([Say("Fine.")]),
]


async def a_long_answer_comes_whole_and_in_order(scene: ChannelScene) -> None:
    paragraphs = [f"Paragraph {number}: {'word ' * 12}." for number in range(12)]
    async with scene.program([Answer([Say("\n\n".join(paragraphs))])]):
        await scene.platform.say(PRIVATE, ALICE, "Tell me")
        await scene.sees("Paragraph 11")
        text = "\n\n".join(each.text for each in scene.platform.shown(PRIVATE))
        assert text == "\n\n".join(paragraphs)


async def a_broken_connection_loses_nothing(scene: ChannelScene) -> None:
    """Sent again under the same key, or with a mark where there is no key."""
    async with scene.program([Answer([Say("Hello.")])]):
        scene.platform.break_after_next_send()
        await scene.platform.say(PRIVATE, ALICE, "Hi")
        await scene.sees("Hello.")
        await scene.quiet()
        shown = [each.text for each in scene.platform.shown(PRIVATE) if "Hello." in each.text]
        unmarked = [text for text in shown if words.SENT_AGAIN not in text]
        assert len(unmarked) == 1, shown


async def a_crash_in_an_answer_is_told(scene: ChannelScene) -> None:
    script = [Answer([Say("Early. "), Wait("on"), Say("Late.")])]
    async with scene.program(script):
        await scene.platform.say(PRIVATE, ALICE, "Begin")
        await scene.model.gate("on").reached()
        await scene.quiet()
        after = scene.crash()
    async with after.program([Answer([Say("After.")])]):
        await after.sees(words.CRASHED)
        await after.platform.redeliver()
        await after.quiet()
        await after.platform.say(PRIVATE, ALICE, "Go on")
        await after.sees("After.")
        await after.quiet()
        assert len(after._with(words.CRASHED, PRIVATE)) == 1
        assert len(after._with("After.", PRIVATE)) == 1
        await after.check_session(f"{after.name}:{PRIVATE.id}", messages=2)


async def a_crash_in_a_send_loses_nothing(scene: ChannelScene) -> None:
    """The platform has the message, and the program ends before it knows."""
    taken = anyio.Event()
    async with scene.program([Answer([Say("Hello.")])]):
        scene.platform.break_after_next_send()
        await scene.platform.say(PRIVATE, ALICE, "Hi")
        await scene.sees("Hello.")
        after = scene.crash()
        taken.set()
    async with after.program([]):
        await after.platform.redeliver()
        await after.quiet()
        shown = [each.text for each in after.platform.shown(PRIVATE) if "Hello." in each.text]
        unmarked = [text for text in shown if words.SENT_AGAIN not in text]
        assert len(unmarked) == 1, shown
        await after.check_session(f"{after.name}:{PRIVATE.id}", messages=1, turns=1)


async def a_restart_before_the_answer_is_sent_loses_nothing(scene: ChannelScene) -> None:
    async with scene.program([Answer([Say("Hello.")])]):
        scene.platform.limit(30.0)
        await scene.platform.say(PRIVATE, ALICE, "Hi")
        await scene.until(lambda: scene.model.requests, "it was asked")
        await scene.quiet()
        after = scene.crash()
    async with after.program([]):
        await scene.quiet(40.0)
        assert len(await after.sees("Hello.")) == 1


async def a_question_is_answered_by_its_button_once(scene: ChannelScene) -> None:
    from bargein.tools.ask import ask_tool

    async with scene.program(ASKS, tools=[ask_tool()]):
        await scene.platform.say(PRIVATE, ALICE, "Serve")
        (question,) = await scene.sees("Tea?")
        assert [button.label for button in question.buttons] == ["yes", "no"]
        await scene.platform.press(PRIVATE, ALICE, question.id, "yes")
        await scene.sees("Fine.")
        await scene.platform.press(PRIVATE, ALICE, question.id, "no")
        await scene.sees(words.NOT_OPEN)
        await scene.platform.redeliver()
        await scene.quiet()
        assert len(await scene.sees(words.NOT_OPEN)) == 1


OUTGOING_CHECKS = tuple(
    map(
        ChannelCheck,
        (
            a_long_answer_comes_whole_and_in_order,
            a_broken_connection_loses_nothing,
            a_crash_in_an_answer_is_told,
            a_crash_in_a_send_loses_nothing,
            a_restart_before_the_answer_is_sent_loses_nothing,
            a_question_is_answered_by_its_button_once,
        ),
    )
)
