"""Passes requests about a session of another node on to that node, its owner.

This node sends the request to the owner and returns the owner's answer. There are two roads: HTTP
between nodes, and letters in the database, which work even if the nodes cannot reach each other.
What holds:

- **Aimed.** A late stop reaches only its target: the turn that was running when the stop was asked
  for, or the first turn after that.
- **Once.** A request has a key. If it arrives twice, on either road, the owner acts on it once and
  answers both times.
- **In the end there is an answer.** The asking node checks again and again which node owns the
  session. If the owner has died it claims the session itself, which settles the turn as crashed,
  and answers the request. If the owner changes, it sends the request to the new owner.
"""

import logging
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING

import anyio
import msgspec

from bargein.contracts.event import TurnStarted
from bargein.contracts.mail import Letter, Road, RoadBlocked, StopAnswered, StopAsked
from bargein.contracts.receipt import Receipt, Scope
from bargein.contracts.store import LeasedStore, OwnedElsewhere
from bargein.errors import BargeinError, WorldError
from bargein.session.reply import SessionGone
from bargein.session.snapshot import stored_in

if TYPE_CHECKING:
    from bargein.session.engine import SessionEngine

LOOK_S = 0.5
LOOK_AGAIN_S = 2.0
REMEMBERED_MAX = 1000
EVENTS_LOOKED_AT = 1000

OPERATION = b"o"
"""The first byte of a request that is not a stop. A stop begins with a byte above 0x7f."""
NOT_HERE = b""
"""The answer of a node that does not have the session."""

_encode = msgspec.msgpack.Encoder().encode
_asked = msgspec.msgpack.Decoder(StopAsked)
_answered = msgspec.msgpack.Decoder(StopAnswered)
_log = logging.getLogger("bargein.session")

Perform = Callable[[str, bytes], Awaitable[bytes]]
"""Performs a request with this key. Raises `OwnedElsewhere` if another node has the session."""


class Unreached(WorldError):
    """It was asked for, and the node that has the session did not confirm it in time."""


class _Waiting:
    """A request that was sent and is not answered."""

    def __init__(self) -> None:
        self.came = anyio.Event()
        self.answer: bytes | None = None

    def take(self, answer: bytes) -> None:
        self.answer = answer
        self.came.set()

    def forget(self) -> None:
        self.came, self.answer = anyio.Event(), None


class Elsewhere:
    """`road` leads to other nodes over HTTP, and `perform` does what they ask for beside stops;
    both are None until the part above sets them."""

    def __init__(self, engine: "SessionEngine", store: LeasedStore) -> None:
        self._engine = engine
        self._store = store
        self._waiting: dict[str, _Waiting] = {}
        self._under_way: dict[str, _Waiting] = {}
        self.counts: Counter[str] = Counter()
        """How often other nodes were asked, by the road, and how often this one took over."""
        self.moved: Counter[str] = Counter()
        """Sessions that came here from other nodes, or went from here, by the cause."""
        self.road: Road | None = None
        self.perform: Perform | None = None

    def open(self) -> None:
        self._store.mail.open(self._receive)

    # --- asking

    async def stop(self, asked: StopAsked, owner: OwnedElsewhere) -> Receipt | None:
        """The receipt of the session's owner. Returns None if this node has the session now."""
        limits = self._engine.limits
        within_s = limits.receipt_s + limits.store_s
        body = await self.ask(asked.session, owner, _encode(asked), within_s=within_s)
        if body is None:
            return None
        answer = _answered.decode(body)
        if answer.receipt is None:
            raise Unreached(f"{owner}: {answer.error}", retryable=True)
        return answer.receipt

    async def ask(
        self,
        session: str,
        owner: OwnedElsewhere,
        body: bytes,
        *,
        within_s: float | None,
        key: str | None = None,
    ) -> bytes | None:
        """The answer of the session's owner. Returns None if this node has the session now."""
        key = key or secrets.token_hex(12)
        waiting = self._waiting[key] = _Waiting()
        is_first = True
        try:
            with anyio.move_on_after(within_s):
                while True:
                    answer = await self._ask_once(owner, key, body, waiting, is_first=is_first)
                    if answer:
                        return answer
                    waiting.forget()
                    is_first = False
                    try:
                        await self._engine.actor(session)
                        self.counts["taken over"] += 1
                        return None
                    except OwnedElsewhere as now:
                        if answer == NOT_HERE and now.owner == owner.owner:
                            # It is about to let the session go, or to come back to it.
                            await anyio.sleep(LOOK_S / 10)
                        owner = now
        finally:
            del self._waiting[key]
        raise Unreached(
            f"{owner} and does not answer. It was asked for and is not confirmed; ask again",
            retryable=True,
        )

    async def _ask_once(
        self, owner: OwnedElsewhere, key: str, body: bytes, waiting: _Waiting, *, is_first: bool
    ) -> bytes | None:
        """One try. Returns None if there is no answer yet and it is time to look who has the
        session. A node that did not answer over HTTP at the first try gets a letter as well: it may
        be cut off, or just need long."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._send, owner, key, body, waiting)
            has_road = self.road is not None and bool(owner.address)
            if has_road and not is_first:
                group.start_soon(self._post, owner.owner, Letter(self._store.owner, key, body))
            with anyio.move_on_after(LOOK_S if is_first or not has_road else LOOK_AGAIN_S):
                await waiting.came.wait()
            group.cancel_scope.cancel()
        return waiting.answer

    async def _send(self, owner: OwnedElsewhere, key: str, body: bytes, waiting: _Waiting) -> None:
        if self.road is not None and owner.address:
            try:
                waiting.take(await self.road.ask(owner.address, key, body))
                self.counts["http"] += 1
                return
            except RoadBlocked as error:
                _log.info("node %s is asked by letter: %s", owner.owner, error)
        await self._post(owner.owner, Letter(self._store.owner, key, body))

    async def aim(self, asked: StopAsked) -> StopAsked:
        """Fix what is meant now, from what is durable."""
        head = await self._engine.store.head(asked.session)
        if head is None:
            return asked
        turn = asked.expected_turn
        if turn is None and asked.scope in (Scope.TURN, Scope.SESSION):
            turn = stored_in(head).state.turn
        return msgspec.structs.replace(asked, expected_turn=turn, seq=head.seq)

    async def _post(self, recipient: str, letter: Letter) -> None:
        try:
            await self._store.mail.post(recipient, letter)
            self.counts["answer by letter" if letter.answers else "letter"] += 1
        except (BargeinError, ValueError) as error:
            # It is posted again at the next look.
            _log.warning("a letter to %s cannot be posted: %s", recipient, error)

    # --- being asked

    async def _receive(self, letter: Letter) -> None:
        if letter.answers:
            waiting = self._waiting.get(letter.answers)
            if waiting is not None:
                waiting.take(letter.body)
            return
        self._engine.spawn(partial(self._answer_letter, letter))

    async def _answer_letter(self, letter: Letter) -> None:
        answer = await self.answer(letter.key, letter.body)
        # An answer that says otherwise than the last one must not be taken for the same letter.
        key = f"{letter.key}!{secrets.token_hex(4)}" if answer == NOT_HERE else f"{letter.key}!"
        await self._post(letter.sender, Letter(self._store.owner, key, answer, answers=letter.key))

    async def answer(self, key: str, body: bytes) -> bytes:
        """Does what another node asks for, once for each key. Returns the answer, `NOT_HERE` if
        another node has the session. A cancel ends only the wait."""
        known = self._under_way.get(key)
        if known is None:
            known = self._under_way[key] = _Waiting()
            self._forget_the_oldest()
            self._engine.spawn(partial(self._obey, key, body, known))
        await known.came.wait()
        return known.answer or NOT_HERE

    def _forget_the_oldest(self) -> None:
        """Forget an old answer if there are too many; never what is still being done, which would
        be done once more if it is asked for again."""
        if len(self._under_way) > REMEMBERED_MAX:
            done = (key for key, each in self._under_way.items() if each.came.is_set())
            oldest = next(done, None)
            if oldest is not None:
                del self._under_way[oldest]

    async def _obey(self, key: str, body: bytes, under_way: _Waiting) -> None:
        from bargein.session.engine import EngineClosed

        answer = NOT_HERE
        try:
            if body[:1] == OPERATION and self.perform is not None:
                answer = await self.perform(key, body[1:])
            else:
                answer = _encode(await self._stop_here(_asked.decode(body)))
        except (OwnedElsewhere, SessionGone, EngineClosed):
            pass
        except (BargeinError, msgspec.MsgspecError) as error:
            answer = _encode(StopAnswered(error=str(error)))
        finally:
            if not answer and self._under_way.get(key) is under_way:
                # Asked again, it may be otherwise.
                del self._under_way[key]
            under_way.take(answer)

    async def _stop_here(self, asked: StopAsked) -> StopAnswered:
        from bargein.cancel import Reason
        from bargein.session.abort import Interrupt

        await self._engine.actor(asked.session)
        stop = Interrupt(
            self._engine,
            asked.session,
            Reason(asked.cause, asked.by),
            scope=asked.scope,
            target=asked.target or None,
            expected_turn=await self.meant(asked),
            heard=asked.heard,
        )
        return StopAnswered(await stop.receipt())

    async def meant(self, asked: StopAsked) -> str | None:
        """The turn that is meant: the first after the place at which the stop was asked for, if
        none was running there. None if that has not begun, or is only beginning."""
        if asked.expected_turn is not None or asked.scope not in (Scope.TURN, Scope.SESSION):
            return asked.expected_turn
        since = await self._engine.store.events(
            asked.session, after=asked.seq, limit=EVENTS_LOOKED_AT
        )
        turns = [each.event.turn for each in since if isinstance(each.event, TurnStarted)]
        return turns[0] if turns else None
