"""Connections that break: nothing is lost, nothing happens twice, a stop hits what was meant."""

from __future__ import annotations

import random
from collections import Counter
from contextlib import aclosing, suppress
from pathlib import Path

import anyio
import anyio.lowlevel
import msgspec
import pytest

from bargein.client import Client, Disconnected, Session, TooLate, TooSlow, Unanswered
from bargein.client.watches import EVENTS_MAX, WireWatch
from bargein.contracts.event import MessageAccepted, Recorded, TurnSettled
from bargein.contracts.live import TextDelta
from bargein.contracts.message import Disposition
from bargein.contracts.model import Text, UserMessage
from bargein.contracts.receipt import Receipt, ReceiptStatus
from bargein.models.script import Say, Script, Step, Wait
from bargein.server.access import add_token
from bargein.server.gateway_db import FILE, GatewayDb
from bargein.session.state import Phase
from tests.client.joined import Watcher, check_same, joined, local, port_of
from tests.client.relay import CuttingRelay
from tests.server.program import Program
from tests.server.stage import WITHIN_S, Stage, serving
from tests.session.world import until

pytestmark = pytest.mark.anyio

HOLD: list[Step] = [Say("One "), Wait("hold"), Say("two")]

COUNTING = """
repeat = true
[[answers]]
when = "quick"
steps = [{ do = "say", text = "done" }]
[[answers]]
steps = [{ do = "say", text = "for ever " }, { do = "pause", seconds = 600.0 }]
"""


async def accepted(stage: Stage, session: Session) -> Counter[str]:
    """How often each text was accepted."""
    log = await local(stage, session).events()
    events = [each.event for each in log if isinstance(each.event, MessageAccepted)]
    return Counter(event.message.text for event in events)


async def test_a_message_whose_answer_is_lost_is_taken_once(tmp_path: Path) -> None:
    async with (
        serving([[Say("Hello")]], tmp_path) as stage,
        CuttingRelay(port_of(stage.url)) as relay,
        joined(stage, url=relay.url) as client,
    ):
        session = await client.new_session()
        relay.lose_answers()
        sent = await session.send("Hi")
        assert (sent.message, sent.disposition) == ("m1", Disposition.DUPLICATE)
        assert (await sent.result()).text == "Hello"
        assert await accepted(stage, session) == {"Hi": 1}
        assert relay.connections == 2


async def test_a_message_that_never_arrived_is_sent_again(tmp_path: Path) -> None:
    async with (
        serving([[Say("Hello")]], tmp_path) as stage,
        CuttingRelay(port_of(stage.url)) as relay,
        joined(stage, url=relay.url) as client,
    ):
        session = await client.new_session()
        relay.lose_words()
        sent = await session.send("Hi")
        assert sent.disposition is Disposition.STARTED
        assert await accepted(stage, session) == {"Hi": 1}


async def test_a_stream_goes_on_after_a_break(tmp_path: Path) -> None:
    async with (
        serving([HOLD], tmp_path) as stage,
        CuttingRelay(port_of(stage.url)) as relay,
        joined(stage, url=relay.url) as client,
    ):
        session = await client.new_session()
        events = []
        async with aclosing(session.stream("Count")) as stream:
            async for event in stream:
                events.append(event)
                if isinstance(event, TextDelta) and event.text.startswith("One"):
                    relay.cut()
                    await until(lambda: not client.is_connected)
                    stage.model.gate("hold").open()
        assert isinstance(events[-1], TurnSettled)
        kinds = Counter(type(each).__name__ for each in events)
        assert (kinds["TurnStarted"], kinds["AssistantSaid"], kinds["TurnSettled"]) == (1, 1, 1)


@pytest.mark.parametrize("lost", ["lose_answers", "lose_rest"])
async def test_a_stop_whose_answer_is_lost_hits_no_later_turn(tmp_path: Path, lost: str) -> None:
    async with (
        serving([HOLD, HOLD], tmp_path) as stage,
        CuttingRelay(port_of(stage.url)) as relay,
        joined(stage, url=relay.url) as client,
    ):
        session = await client.new_session()
        sent = await session.send("Count")
        await stage.model.gate("hold").reached()
        receipts: list[Receipt] = []

        async def stop() -> None:
            receipts.append(await session.interrupt())

        async with anyio.create_task_group() as group:
            getattr(relay, lost)()
            relay.away = True
            group.start_soon(stop)
            mine = local(stage, session)
            await mine.result(sent.message)
            await mine.send("Another")
            await stage.model.gate("hold").reached()
            assert not receipts
            relay.away = False
        assert [(each.status, each.target) for each in receipts] == [(ReceiptStatus.STOPPED, "t1")]
        state = await session.state()
        assert (state.phase, state.turn) == (Phase.RUNNING, "t2")


async def test_a_withdrawal_whose_answer_is_lost_is_not_too_late(tmp_path: Path) -> None:
    async with (
        serving([HOLD], tmp_path) as stage,
        CuttingRelay(port_of(stage.url)) as relay,
        joined(stage, url=relay.url) as client,
    ):
        session = await client.new_session()
        await session.send("Count")
        await stage.model.gate("hold").reached()
        await session.send("later", mode="queue")
        relay.lose_answers()
        await session.withdraw("m2")
        with pytest.raises(TooLate):
            await session.withdraw("m2")


async def test_a_server_that_is_gone_is_waited_for_so_long_and_no_longer(tmp_path: Path) -> None:
    async with (
        serving([[Say("Hello")]], tmp_path) as stage,
        CuttingRelay(port_of(stage.url)) as relay,
        joined(stage, url=relay.url, patience_s=0.3) as client,
    ):
        session = await client.new_session()
        relay.away = True
        relay.cut()
        with pytest.raises(Disconnected, match="cannot be reached"):
            await session.send("lost")
        relay.away = False
        sent = await session.send("Hi")
        assert (await sent.result()).text == "Hello"
        assert await accepted(stage, session) == {"Hi": 1}


async def test_closing_a_client_ends_every_wait(tmp_path: Path) -> None:
    async with serving([HOLD], tmp_path) as stage:
        client = Client(stage.url, token="the-token-of-this-start-which-is-long-enough")
        async with anyio.create_task_group() as group, client:
            session = await client.new_session()
            sent = await session.send("Count")

            async def wait() -> None:
                with pytest.raises(Disconnected, match="closed"):
                    await sent.result()

            group.start_soon(wait)
            await stage.model.gate("hold").reached()
        with pytest.raises(Disconnected, match="closed"):
            await session.state()
        assert local(stage, session)._engine.actor_in_memory(session.id) is not None


def test_a_reader_that_does_not_keep_up_is_told_so() -> None:
    watch = WireWatch("w1", "s", 0)
    piece = msgspec.json.encode(TextDelta("t1", "word"))
    for _ in range(EVENTS_MAX):
        watch.take(piece)
    assert not watch.is_over
    watch.take(piece)
    assert watch.is_over
    with pytest.raises(TooSlow):
        raise watch._error


class Crowd:
    """Clients of one session, and all that happens to them at random."""

    def __init__(self, chance: random.Random, relays: list[CuttingRelay]) -> None:
        self.chance = chance
        self.said: list[str] = []
        self._relays = relays

    async def send(self, session: Session) -> None:
        text = f"word {len(self.said)}"
        self.said.append(text)
        await session.send(text, mode=self.chance.choice(["steer", "queue", "interrupt"]))

    async def stop(self, session: Session) -> None:
        await session.interrupt()

    async def go_on(self, session: Session) -> None:
        with suppress(TooLate):
            await session.continue_()

    async def withdraw(self, session: Session) -> None:
        with suppress(TooLate):
            for item in (await session.inbox())[-1:]:
                await session.withdraw(item.message.id)

    async def cut(self, session: Session) -> None:
        self.chance.choice(self._relays).cut()

    async def lose(self, session: Session) -> None:
        relay = self.chance.choice(self._relays)
        self.chance.choice([relay.lose_answers, relay.lose_words, relay.lose_rest])()

    async def act(self, session: Session) -> None:
        acts = (self.send, self.send, self.stop, self.go_on, self.withdraw, self.cut, self.lose)
        await self.chance.choice(acts)(session)


@pytest.mark.parametrize("seed", range(6))
async def test_connections_that_break_at_random(tmp_path: Path, seed: int) -> None:
    """Three clients of one session, whose connections break at random moments: each sees every
    event once, in order; each message that a client sent is accepted once."""
    chance = random.Random(seed)
    words = "some words of an answer that takes a moment"
    script = Script([[Say(words, pace_s=0.002)], [Say("quick")]], repeat=True)
    async with (
        serving(script, tmp_path) as stage,
        CuttingRelay(port_of(stage.url)) as one,
        CuttingRelay(port_of(stage.url)) as two,
        joined(stage) as steady,
        joined(stage, url=one.url) as first,
        joined(stage, url=two.url) as second,
    ):
        made = await steady.new_session()
        sessions = [made, *[await each.session(made.id) for each in (first, second)]]
        watchers = [Watcher(each) for each in sessions]
        crowd = Crowd(chance, [one, two])
        with anyio.fail_after(WITHIN_S):
            async with anyio.create_task_group() as watching:
                for watcher in watchers:
                    watching.start_soon(watcher.run)
                async with anyio.create_task_group() as group:
                    for _ in range(80):
                        group.start_soon(crowd.act, chance.choice(sessions))
                        await anyio.sleep(chance.uniform(0, 0.02))
                await crowd.go_on(made)
                for watcher in watchers:
                    await check_same(stage, watcher)
                watching.cancel_scope.cancel()
        assert await accepted(stage, made) == dict.fromkeys(crowd.said, 1)
        assert one.connections + two.connections > 2


async def test_a_server_that_is_killed_under_a_client(tmp_path: Path) -> None:
    """kill -9 and a new start: the client comes back by itself. A stop that was on its way stops
    nothing of what the new start runs; what may not be done twice is said to be unanswered."""
    home = tmp_path / "home"
    home.mkdir()
    db = GatewayDb.open(home / FILE)
    _, token = await add_token(db, "alice")
    db.close()
    async with CuttingRelay(0) as relay:
        with Program(home, COUNTING) as program:
            relay.port = port_of(program.url)
            client = Client(relay.url, token=token, patience_s=WITHIN_S)
            async with client, anyio.create_task_group() as group:
                session, other = await client.new_session(), await client.new_session()
                watcher = Watcher(session)
                group.start_soon(watcher.run)
                sent = await session.send("count")
                waits = await session.send("count again", mode="queue")
                await until(lambda: any(isinstance(each, TextDelta) for each in watcher.events))
                stops: list[Receipt] = []
                unanswered: list[Unanswered] = []

                async def stop() -> None:
                    stops.append(await session.interrupt())

                async def begin() -> None:
                    try:
                        await other.begin_with([UserMessage((Text("before"),))])
                    except Unanswered as error:
                        unanswered.append(error)

                relay.away = True
                relay.lose_answers()
                group.start_soon(begin)
                await until(lambda: not client.is_connected)
                group.start_soon(stop)
                program.kill()
                with Program(home, COUNTING) as second:
                    relay.port = port_of(second.url)
                    relay.away = False
                    result = await sent.result()
                    assert result.outcome == "crashed"
                    await until(lambda: stops and unanswered)
                    assert stops[0].status is ReceiptStatus.TOO_LATE
                    state = await session.state()
                    assert (state.phase, state.turn) == (Phase.RUNNING, "t2")
                    assert (await session.interrupt()).target == "t2"
                    assert (await waits.result()).outcome == "stopped"
                    log = await session.events()
                    await watcher.until(log[-1].seq)
                    seqs = [each.seq for each in watcher.recorded]
                    assert seqs == list(range(1, log[-1].seq + 1))
                    assert all(isinstance(each, Recorded) for each in watcher.recorded)
                    group.cancel_scope.cancel()


@pytest.mark.parametrize("passes", range(20))
async def test_a_client_that_is_closed_while_its_connection_breaks_ends(
    tmp_path: Path, passes: int
) -> None:
    """`passes` of the loop after the break. The client was about to connect again at one of them,
    and did so for ever."""
    async with (
        serving([], tmp_path) as stage,
        CuttingRelay(port_of(stage.url)) as relay,
    ):
        with anyio.fail_after(WITHIN_S):
            async with joined(stage, url=relay.url):
                relay.cut()
                for _ in range(passes):
                    await anyio.lowlevel.checkpoint()
