"""A stop for a session that another node has.

The node that is asked fixes what is meant, by reading what is durable, and sends a letter to the
owner. The owner's receipt is the answer. What holds:

- **Aimed.** A letter that arrives late stops nothing but what was meant: the turn that was running
  when the stop was asked for, or the first one after that.
- **Once.** A letter that comes twice is answered twice and acted on once.
- **In the end there is an answer.** The asking node looks again and again who has the session. If
  the owner has died it claims the session itself, which settles the turn as crashed, and answers
  for it. If the owner changes, the letter goes to the new one.
"""

import logging
import secrets
from functools import partial
from typing import TYPE_CHECKING

import anyio
import msgspec

from bargein.contracts.event import TurnStarted
from bargein.contracts.mail import Letter, StopAnswered, StopAsked
from bargein.contracts.receipt import Receipt, Scope
from bargein.contracts.store import LeasedStore, OwnedElsewhere
from bargein.errors import BargeinError, WorldError
from bargein.session.snapshot import stored_in

if TYPE_CHECKING:
    from bargein.session.engine import SessionEngine

LOOK_S = 0.5
REMEMBERED_MAX = 1000
EVENTS_LOOKED_AT = 1000

_encode = msgspec.msgpack.Encoder().encode
_asked = msgspec.msgpack.Decoder(StopAsked)
_answered = msgspec.msgpack.Decoder(StopAnswered)
_log = logging.getLogger("bargein.session")


class Unreached(WorldError):
    """The stop was asked for, and the node that has the session did not confirm it in time."""


class _Waiting:
    """A stop that was asked for and is not answered."""

    def __init__(self) -> None:
        self.came = anyio.Event()
        self.answer: StopAnswered | None = None


class Elsewhere:
    def __init__(self, engine: "SessionEngine", store: LeasedStore) -> None:
        self._engine = engine
        self._store = store
        self._waiting: dict[str, _Waiting] = {}
        self._answers: dict[str, StopAnswered | None] = {}

    def open(self) -> None:
        self._store.mail.open(self._receive)

    # --- asking

    async def stop(self, asked: StopAsked, owner: OwnedElsewhere) -> Receipt | None:
        """The receipt of the session's owner. Returns None if this node has the session now."""
        key = secrets.token_hex(12)
        waiting = self._waiting[key] = _Waiting()
        limits = self._engine.limits
        try:
            with anyio.move_on_after(limits.receipt_s + limits.store_s):
                while True:
                    await self._post(owner.owner, Letter(self._store.owner, key, _encode(asked)))
                    with anyio.move_on_after(LOOK_S):
                        await waiting.came.wait()
                    answer = waiting.answer
                    if answer is not None and answer.receipt is not None:
                        return answer.receipt
                    if answer is not None and answer.error:
                        raise Unreached(f"{owner}: {answer.error}", retryable=True)
                    waiting.came, waiting.answer = anyio.Event(), None
                    try:
                        await self._engine.actor(asked.session)
                        return None
                    except OwnedElsewhere as now:
                        owner = now
        finally:
            del self._waiting[key]
        raise Unreached(
            f"{owner} and does not answer. The stop was asked for and is not confirmed; ask again",
            retryable=True,
        )

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
        except BargeinError as error:
            # It is posted again at the next look.
            _log.warning("a letter to %s cannot be posted: %s", recipient, error)

    # --- being asked

    async def _receive(self, letter: Letter) -> None:
        if letter.answers:
            waiting = self._waiting.get(letter.answers)
            if waiting is not None:
                waiting.answer = _answered.decode(letter.body)
                waiting.came.set()
            return
        if letter.key not in self._answers:
            self._answers[letter.key] = None
            if len(self._answers) > REMEMBERED_MAX:
                del self._answers[next(iter(self._answers))]
            self._engine.spawn(partial(self._obey, letter))
        elif (answer := self._answers[letter.key]) is not None:
            self._engine.spawn(partial(self._answer, letter, answer))

    async def _obey(self, letter: Letter) -> None:
        try:
            answer = StopAnswered(await self._stop_here(_asked.decode(letter.body)))
        except OwnedElsewhere:
            answer = StopAnswered()
        except (BargeinError, msgspec.MsgspecError) as error:
            answer = StopAnswered(error=str(error))
        if answer.receipt is None:
            # Asked again, it may be otherwise.
            self._answers.pop(letter.key, None)
        else:
            self._answers[letter.key] = answer
        await self._answer(letter, answer)

    async def _answer(self, letter: Letter, answer: StopAnswered) -> None:
        key = f"{letter.key}!"
        await self._post(
            letter.sender, Letter(self._store.owner, key, _encode(answer), answers=letter.key)
        )

    async def _stop_here(self, asked: StopAsked) -> Receipt:
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
        )
        return await stop.receipt()

    async def meant(self, asked: StopAsked) -> str | None:
        """The turn that is meant: the first after the place at which the stop was asked for, if
        none was running there. None if that has not begun, or is only beginning."""
        if asked.expected_turn is not None or asked.scope in (Scope.CALL, Scope.CHILD):
            return asked.expected_turn
        since = await self._engine.store.events(
            asked.session, after=asked.seq, limit=EVENTS_LOOKED_AT
        )
        turns = [each.event.turn for each in since if isinstance(each.event, TurnStarted)]
        return turns[0] if turns else None
