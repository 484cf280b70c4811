"""Hooks: each called at its place, each ended by a stop, none able to hold a session up."""

from __future__ import annotations

import logging

import anyio
import pytest

from bargein.cancel import current_token
from bargein.contracts.event import TurnOutcome, TurnSettled, UserSaid
from bargein.contracts.message import Attachment, Message
from bargein.contracts.model import Image, ModelRequest, Text
from bargein.contracts.receipt import StepKind
from bargein.contracts.tool import CallResult, CallStatus, PlannedCall, Refused
from bargein.models.script import Call, Expect, Say
from bargein.session.hooks import Hooks
from bargein.session.turn import Turn
from tests.session.laws import events_of, statuses
from tests.session.world import LIMITS, Gate, Script, a_world, answered, completes, until

pytestmark = pytest.mark.anyio

PHOTO = Attachment("photo.jpg", "image/jpeg", b"...")


class Noted(Hooks):
    """Writes down who was called, and waits at the one that was named."""

    def __init__(self, held: str = "") -> None:
        self.calls: list[str] = []
        self.gate = Gate()
        self.held = held
        self.tokens: dict[str, str] = {}

    async def _note(self, name: str, detail: str) -> None:
        self.calls.append(f"{name} {detail}")
        token = current_token()
        self.tokens[name] = token.name if token is not None else ""
        if name == self.held:
            await self.gate()

    async def session_started(self, session: str) -> None:
        await self._note("session_started", session)

    async def message(self, session: str, message: Message) -> None:
        await self._note("message", message.text)

    async def turn_started(self, session: str, turn: str) -> None:
        await self._note("turn_started", turn)

    async def before_tool(self, session: str, planned: PlannedCall) -> Refused | None:
        await self._note("before_tool", planned.call.name)
        return Refused("not today") if planned.call.name == "forbidden" else None

    async def after_tool(self, session: str, planned: PlannedCall, result: CallResult) -> None:
        await self._note("after_tool", f"{planned.call.name} {result.status}")

    async def turn_settled(self, session: str, settled: TurnSettled) -> None:
        await self._note("turn_settled", f"{settled.turn} {settled.outcome}")

    async def enrich(self, session: str, attachment: Attachment) -> tuple[Text | Image, ...]:
        await self._note("enrich", attachment.name)
        return (Text("a cat"),)


async def work() -> str:
    """Work."""
    return "worked"


async def forbidden() -> str:
    """Must not run."""
    raise AssertionError("it ran")


TWO_STEPS: Script = [[Call("work")], [Say("Done")], [Say("Next")]]


async def test_hooks_are_called_in_order_each_at_its_place() -> None:
    hooks = Noted()
    script: Script = [[Expect(user="a cat"), Call("work"), Call("forbidden")], [Say("Done")]]
    async with a_world(script, tools=[work, forbidden], hooks=hooks) as world:
        session = await world.session()
        result = await completes(session, "Look", attachments=[PHOTO])
        assert result.text == "Done"
        await until(lambda: "turn_settled t1 completed" in hooks.calls)
        assert "session_started alice" in hooks.calls
        hooks.calls.remove("session_started alice")
        # The two calls run side by side.
        hooks.calls.remove("before_tool forbidden")
        assert hooks.calls == [
            "message Look",
            "turn_started t1",
            "enrich photo.jpg",
            "before_tool work",
            "after_tool work finished",
            "turn_settled t1 completed",
        ]
        log = await session.events()
        assert statuses(log)["t1_1_2"] is CallStatus.NOT_STARTED
        await world.check()


HELD = ["message", "turn_started", "enrich", "before_tool", "after_tool"]


@pytest.mark.parametrize("held", HELD)
async def test_a_stop_ends_a_hook_that_is_running_and_says_so(held: str) -> None:
    hooks = Noted(held)
    script: Script = [[Call("work")], [Say("Next")], [Say("Next")]]
    async with a_world(script, tools=[work], hooks=hooks) as world:
        session = await world.session()
        sent = await session.send("Look", attachments=[PHOTO])
        await hooks.gate.reached.wait()
        receipt = await session.interrupt()
        assert (await answered(sent)).outcome is TurnOutcome.STOPPED
        assert not receipt.abandoned, receipt
        names = {(step.kind, step.name): step.status for step in receipt.steps}
        if held.endswith("_tool"):
            status = CallStatus.NOT_STARTED if held == "before_tool" else CallStatus.FINISHED
            assert names == {(StepKind.TOOL, "work"): status}
        else:
            assert names == {(StepKind.HOOK, held): CallStatus.STOPPED}
        hooks.held = ""
        assert (await completes(session, "again")).text == "Next"
        await world.check()


@pytest.mark.parametrize("held", ["message", "turn_started", "enrich"])
async def test_a_steer_that_comes_before_the_first_request_is_in_it(held: str) -> None:
    """No request is in flight that it could cut, so the first one must not be made without it."""
    hooks = Noted(held)
    script: Script = [[Expect(user="but in French"), Say("Oui.")]]
    async with a_world(script, hooks=hooks) as world:
        session = await world.session()
        await session.send("Look", attachments=[PHOTO])
        await hooks.gate.reached.wait()
        steer = await session.send("but in French")
        hooks.held = ""
        hooks.gate.opened.set()
        assert (await answered(steer)).text == "Oui."
        assert len(world.model.requests) == 1
        await world.check()


async def test_an_agent_that_takes_no_steers_is_cut_once_by_each() -> None:
    cuts: list[bool] = []

    async def agent(turn: Turn) -> None:
        while not cuts or cuts[-1]:
            asked = await turn.ask_model(world.model, ModelRequest(messages=turn.history()))
            cuts.append(asked.cut)

    hooks = Noted("turn_started")
    async with a_world([[Say("Said.")], [Say("Next.")]], agent=agent, hooks=hooks) as world:
        session = await world.session()
        sent = await session.send("Look")
        await hooks.gate.reached.wait()
        await session.send("one")
        await session.send("two")
        hooks.held = ""
        hooks.gate.opened.set()
        assert (await answered(sent)).text == "Said."
        assert cuts[:2] == [True, False]


@pytest.mark.parametrize("held", [*HELD, "turn_settled", "session_started"])
async def test_a_hook_that_takes_too_long_is_passed_over(
    held: str, caplog: pytest.LogCaptureFixture
) -> None:
    hooks = Noted(held)
    with caplog.at_level(logging.WARNING, "bargein.session"):
        async with a_world(TWO_STEPS, tools=[work], hooks=hooks, hook_s=0.05, enrich_s=0.05) as w:
            session = await w.session()
            result = await completes(session, "Look", attachments=[PHOTO])
            assert result.text == "Done"
            await until(lambda: any(held in record.getMessage() for record in caplog.records))
            await w.check()
    assert "took longer than 0.05 s" in caplog.text


class Failing(Noted):
    async def _note(self, name: str, detail: str) -> None:
        raise LookupError("a bug in a hook")


async def test_a_hook_that_fails_is_passed_over_and_noted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING, "bargein.session"):
        async with a_world(TWO_STEPS, tools=[work], hooks=Failing()) as world:
            session = await world.session()
            assert (await completes(session, "Look", attachments=[PHOTO])).text == "Done"
            log = events_of(await session.events())
            words = [e.content for e in log if isinstance(e, UserSaid)]
            assert (Text("[attachment photo.jpg: could not be described]"),) in words
            await until(lambda: "turn_settled" in caplog.text)
            await world.check()
    names = ("session_started", "message", "turn_started", "enrich", "before_tool", "after_tool")
    for name in names:
        assert name in caplog.text
    assert "a bug in a hook" in caplog.text


async def test_a_hook_that_ignores_its_stop_does_not_hold_the_receipt_up() -> None:
    class Deaf(Hooks):
        async def turn_started(self, session: str, turn: str) -> None:
            if turn == "t1":
                reached.set()
                with anyio.CancelScope(shield=True):
                    await let_go.wait()

    reached, let_go = anyio.Event(), anyio.Event()
    async with a_world([[Say("Next")]], hooks=Deaf()) as world:
        session = await world.session()
        await session.send("1")
        await reached.wait()
        try:
            with anyio.fail_after(LIMITS.settle_s):
                receipt = await session.interrupt()
        except TimeoutError:
            let_go.set()
            raise
        assert [(s.name, s.status) for s in receipt.abandoned] == [
            ("turn_started", CallStatus.ABANDONED)
        ]
        assert (await completes(session, "2")).text == "Next"
        let_go.set()
        await world.check()


async def test_a_hook_runs_under_a_token_of_its_own() -> None:
    hooks = Noted()
    async with a_world(TWO_STEPS, tools=[work], hooks=hooks) as world:
        session = await world.session()
        await completes(session, "Look", attachments=[PHOTO])
        await until(lambda: "turn_settled" in hooks.tokens)
    assert hooks.tokens == {name: name for name in hooks.tokens}


async def test_without_a_hook_text_and_images_are_shown_as_they_are() -> None:
    files = [
        PHOTO,
        Attachment("notes.txt", "text/plain", b"remember the milk"),
        Attachment("data.json", "application/json", b"{}"),
        Attachment("song.mp3", "audio/mpeg", b"\xff\xfb"),
    ]
    for hooks in (None, Hooks()):
        async with a_world([[Say("Done")]], hooks=hooks) as world:
            session = await world.session()
            await completes(session, "Look", attachments=files)
            said = [e.content for e in events_of(await world.log()) if isinstance(e, UserSaid)]
            assert said[1][1] == Image("image/jpeg", b"...")
            assert said[2] == (Text("[The user attached the file notes.txt:]\nremember the milk"),)
            assert said[3] == (Text("[The user attached the file data.json:]\n{}"),)
            (song,) = said[4]
            assert isinstance(song, Text)
            assert "song.mp3" in song.text
