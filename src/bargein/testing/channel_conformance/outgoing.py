"""Answers, long ones, questions; restarts and broken connections in the middle of them."""

import anyio

from bargein.channels import words
from bargein.models.script import Answer, Call, Say, Wait
from bargein.testing.channel_conformance.scene import ChannelCheck, ChannelScene

ASKS = [
    Answer([Call("ask", {"question": "Tea?", "choices": ["yes", "no"]})]),
    Answer([Say("Fine.")]),
]


async def a_long_answer_comes_whole_and_in_order(scene: ChannelScene) -> None:
    count = 5 * scene.platform.open_channel().traits.text_max // 2 // 80
    paragraphs = [f"Paragraph {number:03}: {'word ' * 12}." for number in range(count)]
    async with scene.program([Answer([Say("\n\n".join(paragraphs))])]):
        await scene.platform.say(scene.platform.private, scene.platform.alice, "Tell me")
        await scene.sees(f"Paragraph {count - 1:03}")
        await scene.quiet()
        text = "\n\n".join(each.text for each in scene.platform.shown(scene.platform.private))
        assert text == "\n\n".join(paragraphs)


async def a_broken_connection_loses_nothing(scene: ChannelScene) -> None:
    """Sent again under the same key, or with a mark where there is no key."""
    async with scene.program([Answer([Say("Hello.")])]):
        scene.platform.break_after_next_send()
        await scene.platform.say(scene.platform.private, scene.platform.alice, "Hi")
        await scene.sees("Hello.")
        await scene.quiet()
        shown = [
            each.text
            for each in scene.platform.shown(scene.platform.private)
            if "Hello." in each.text
        ]
        unmarked = [text for text in shown if words.SENT_AGAIN not in text]
        assert len(unmarked) == 1, shown


async def a_connection_that_breaks_in_a_preview_loses_no_word(scene: ChannelScene) -> None:
    async with scene.program([Answer([Say("One. "), Wait("on"), Say("Two.")])]):
        scene.platform.break_after_next_send()
        await scene.platform.say(scene.platform.private, scene.platform.alice, "Begin")
        await scene.model.gate("on").reached()
        await scene.quiet()
        scene.model.gate("on").open()
        await scene.sees("Two.")
        await scene.quiet()
        _at_most_one_without_a_mark(scene, "Two.")


def _at_most_one_without_a_mark(scene: ChannelScene, text: str) -> None:
    shown = [each.text for each in scene.platform.shown(scene.platform.private)]
    said = [each for each in shown if text in each]
    unmarked = [each for each in said if words.SENT_AGAIN not in each]
    assert said, f"{text!r} is lost: {shown}"
    assert len(unmarked) <= 1, shown


async def a_restart_in_an_answer_is_told(scene: ChannelScene) -> None:
    script = [Answer([Say("Early. "), Wait("on"), Say("Late.")])]
    async with scene.program(script):
        await scene.platform.say(scene.platform.private, scene.platform.alice, "Begin")
        await scene.model.gate("on").reached()
        await scene.quiet()
    after = scene.crash()
    async with after.program([Answer([Say("After.")])]):
        await after.sees(words.CRASHED)
        await after.platform.say(scene.platform.private, scene.platform.alice, "Go on")
        await after.sees("After.")
        await after.platform.redeliver()
        await after.quiet()
        assert len(after._with(words.CRASHED, scene.platform.private)) == 1
        assert len(after._with("After.", scene.platform.private)) == 1
        await after.check_session(after.session, messages=2)


async def a_restart_in_a_send_loses_nothing(scene: ChannelScene) -> None:
    async with scene.program([Answer([Say("Hello.")])]):
        scene.platform.break_after_next_send()
        await scene.platform.say(scene.platform.private, scene.platform.alice, "Hi")
        await scene.sees("Hello.")
    after = scene.crash()
    async with after.program([]):
        await after.platform.redeliver()
        await after.quiet()
        _at_most_one_without_a_mark(after, "Hello.")
        await after.check_session(after.session, messages=1, turns=1)


async def a_crash_in_an_answer_is_told(scene: ChannelScene) -> None:
    script = [Answer([Say("Early. "), Wait("on"), Say("Late.")])]
    async with scene.program(script):
        await scene.platform.say(scene.platform.private, scene.platform.alice, "Begin")
        await scene.model.gate("on").reached()
        await scene.quiet()
        after = scene.crash()
    async with after.program([Answer([Say("After.")])]):
        await after.sees(words.CRASHED)
        await after.platform.redeliver()
        await after.quiet()
        await after.platform.say(scene.platform.private, scene.platform.alice, "Go on")
        await after.sees("After.")
        await after.quiet()
        assert len(after._with(words.CRASHED, scene.platform.private)) == 1
        assert len(after._with("After.", scene.platform.private)) == 1
        await after.check_session(after.session, messages=2)


async def a_crash_in_a_send_loses_nothing(scene: ChannelScene) -> None:
    """The platform has the message, and the program ends before it knows."""
    taken = anyio.Event()
    async with scene.program([Answer([Say("Hello.")])]):
        scene.platform.break_after_next_send()
        await scene.platform.say(scene.platform.private, scene.platform.alice, "Hi")
        await scene.sees("Hello.")
        after = scene.crash()
        taken.set()
    async with after.program([]):
        await after.platform.redeliver()
        await after.quiet()
        shown = [
            each.text
            for each in after.platform.shown(scene.platform.private)
            if "Hello." in each.text
        ]
        unmarked = [text for text in shown if words.SENT_AGAIN not in text]
        assert len(unmarked) == 1, shown
        await after.check_session(after.session, messages=1, turns=1)


async def a_restart_before_the_answer_is_sent_loses_nothing(scene: ChannelScene) -> None:
    async with scene.program([Answer([Say("Hello.")])]):
        scene.platform.limit(scene.platform.limit_s)
        await scene.platform.say(scene.platform.private, scene.platform.alice, "Hi")
        await scene.until_settled(1)
        after = scene.crash()
        assert not scene.platform.shown(scene.platform.private), "the limit still holds"
    async with after.program([]):
        await after.sees("Hello.")
        await after.quiet()
        assert len(await after.sees("Hello.")) == 1


async def a_question_is_answered_by_its_button_once(scene: ChannelScene) -> None:
    from bargein.tools.ask import ask_tool

    async with scene.program(ASKS, tools=[ask_tool()]):
        await scene.platform.say(scene.platform.private, scene.platform.alice, "Serve")
        (question,) = await scene.sees("Tea?")
        await scene.until(lambda: len(question.buttons) == 2, "there are two buttons")
        assert [button.label for button in question.buttons] == ["yes", "no"]
        await scene.platform.press(scene.platform.private, scene.platform.alice, question.id, "yes")
        await scene.sees("Fine.")
        await scene.platform.press(scene.platform.private, scene.platform.alice, question.id, "no")
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
            a_connection_that_breaks_in_a_preview_loses_no_word,
            a_restart_in_an_answer_is_told,
            a_restart_in_a_send_loses_nothing,
            a_crash_in_an_answer_is_told,
            a_crash_in_a_send_loses_nothing,
            a_restart_before_the_answer_is_sent_loses_nothing,
            a_question_is_answered_by_its_button_once,
        ),
    )
)
