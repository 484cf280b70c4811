"""The session guard under fire: one turn at a time, and every message accounted for."""

from pathlib import Path

import anyio
import anyio.abc
import pytest

from bargein.contracts.message import Attachment, Message
from bargein.contracts.model import Image, Text, TextPart
from bargein.models.script import Answer, Say, Script, Wait
from bargein.session.hooks import Hooks
from tests.server.stage import Json, Stage, serving, type_of
from tests.session.world import until

pytestmark = pytest.mark.anyio

MESSAGES = 200


class SlowHooks(Hooks):
    """Many awaits lie between the check for a running turn and its start; here they take long."""

    def __init__(self) -> None:
        self.starting = anyio.Event()
        self.hold: anyio.Event | None = None

    async def message(self, session: str, message: Message) -> None:
        await anyio.sleep(0.001)

    async def turn_started(self, session: str, turn: str) -> None:
        self.starting.set()
        if self.hold is not None:
            await self.hold.wait()
        await anyio.sleep(0.005)

    async def enrich(self, session: str, attachment: Attachment) -> tuple[Text | Image, ...]:
        await anyio.sleep(0.005)
        return (Text(f"a picture of {attachment.name}"),)


@pytest.mark.parametrize("mode", ["steer", "queue", "interrupt", "mixed"])
async def test_hundreds_of_messages_within_milliseconds(tmp_path: Path, mode: str) -> None:
    hooks = SlowHooks()
    script = Script([Answer([Say("ok")])], repeat=True)
    modes = ["steer", "queue", "interrupt"] if mode == "mixed" else [mode]
    async with serving(script, tmp_path, hooks=hooks) as stage:
        session = await stage.new_session()
        answers: list[tuple[int, Json]] = []

        async def send(number: int) -> None:
            body: Json = {"text": f"{number}", "mode": modes[number % len(modes)]}
            if number % 2:
                body["client_message_id"] = f"c{number}"
            if number % 10 == 0:
                body["attachments"] = [{"name": "p", "media_type": "image/png", "data": "aGk="}]
            answers.append(await stage.ask("POST", f"{session}/messages", body))

        with anyio.fail_after(50):
            async with anyio.create_task_group() as group:
                for number in range(MESSAGES):
                    group.start_soon(send, number)
            await (await stage.engine.session(session.rpartition("/")[2])).settled()
        assert {status for status, _ in answers} == {202}
        check(await log(stage, session), {answer["message"] for _, answer in answers})


def check(events: list[Json], acknowledged: set[str]) -> None:
    assert len(acknowledged) == MESSAGES
    taken: list[str] = []
    turn: str | None = None
    for each in events:
        event = each["event"]
        if event["type"] == "turn_started":
            assert turn is None, "two turns in flight"
            turn = event["turn"]
        elif event["type"] == "turn_settled":
            assert turn == event["turn"]
            turn = None
        if event["type"] in ("turn_started", "messages_taken"):
            assert event["turn"] == turn
            taken += event["messages"]
    assert turn is None
    assert len(taken) == len(set(taken)), "taken twice"
    assert set(taken) == acknowledged


async def log(stage: Stage, session: str) -> list[Json]:
    last = (await stage.get(session))["session"]["last_seq"]
    async with stage.events(f"{session}/events?after=0") as events:
        while not events.seen or events.seen[-1].get("id") != last:
            await events.next()
    return [each for each in events.seen if "id" in each]


@pytest.mark.parametrize("words", ["/stop", "stop", "STOP.", " /stop\n"])
async def test_stop_while_a_turn_is_only_starting_is_held_and_honoured(
    tmp_path: Path, words: str
) -> None:
    """The stop comes before the first request to the model, in the middle of the hooks."""
    hooks = SlowHooks()
    hooks.hold = anyio.Event()
    async with serving([[Say("never said")]], tmp_path, hooks=hooks) as stage:
        session = await stage.new_session()
        sent = await stage.post(f"{session}/messages", {"text": "go"})
        await hooks.starting.wait()
        status = await stage.post(f"{session}/messages", {"text": "/status"})
        assert status["reply"] == f"running, {sent['turn']}"
        stopped = await stage.post(f"{session}/messages", {"text": words})
        receipt = stopped["receipt"]
        assert (receipt["status"], receipt["target"]) == ("stopped", sent["turn"])
        assert stage.model.plays == []
        view = await stage.get(f"{session}/turns/{sent['turn']}")
        assert (view["outcome"], view["text"]) == ("stopped", "")


async def test_a_stop_goes_to_the_one_session_it_was_aimed_at(tmp_path: Path) -> None:
    """Sixty sessions stream; every second one is stopped, all at once."""
    script = Script([Answer([Say("a "), Wait("on"), Say("b")])], repeat=True)
    async with serving(script, tmp_path) as stage:
        sessions = [await stage.new_session() for _ in range(60)]
        for session in sessions:
            await stage.post(f"{session}/messages", {"text": "go"})
        await until(lambda: [each.parts for each in stage.model.plays] == [[TextPart("a ")]] * 60)
        receipts: dict[str, Json] = {}

        async def stop(session: str) -> None:
            receipts[session] = await stage.post(f"{session}/interrupt")

        async with anyio.create_task_group() as group:
            for session in sessions[::2]:
                group.start_soon(stop, session)
        assert {each["status"] for each in receipts.values()} == {"stopped"}
        stage.model.gate("on").open()
        for number, session in enumerate(sessions):
            view = await stage.get(f"{session}/turns/t1?wait=true")
            expected = ("stopped", "a ") if number % 2 == 0 else ("completed", "a b")
            assert (view["outcome"], view["text"]) == expected


async def test_the_same_events_reach_every_one_of_many_watchers(tmp_path: Path) -> None:
    script = Script([Answer([Say("one two three ", pace_s=0.001), Say("four")])], repeat=True)
    async with serving(script, tmp_path) as stage:
        session = await stage.new_session()
        seen: list[list[Json]] = []

        async def watch(task_status: anyio.abc.TaskStatus[None]) -> None:
            async with stage.events(f"{session}/events?after=0") as events:
                task_status.started()
                await events.until("turn_settled")
                seen.append(events.seen)

        async with anyio.create_task_group() as group:
            for _ in range(50):
                await group.start(watch)
            await stage.post(f"{session}/messages", {"text": "go"})
        assert len(seen) == 50
        assert all(each == seen[0] for each in seen)
        assert [type_of(each) for each in seen[0]].count("text_delta") == 4
