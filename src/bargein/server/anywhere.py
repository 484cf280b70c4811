"""Sessions that another node has, as if they were here.

`Anywhere` performs an operation here, and sends it to the session's owner if that is another node.
The owner's answer is the answer. A request that may have reached a node that then failed is sent
again under the same Idempotency-Key, so it takes effect once.

`watch` shows the events of a session wherever it is. The log comes with its numbers, so after a
hand-over the stream goes on at the new owner where it was: nothing missed, nothing twice. What
happens between two events of the log is relayed from the owner and never touches the database.
"""

import secrets
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING

import anyio
import msgspec

from bargein.contracts.event import Recorded
from bargein.contracts.mail import RoadBlocked
from bargein.contracts.store import OwnedElsewhere, StoreFailed
from bargein.server.access import Principal
from bargein.server.gateway import Gateway
from bargein.server.keys import Kept
from bargein.server.operation import ApiRequest, Body, Operation, Reply
from bargein.server.problems import Code, Problem, as_problem
from bargein.server.references import RelayedEvent
from bargein.session.broadcast import Watched
from bargein.session.elsewhere import OPERATION, Unreached
from bargein.session.engine import EngineClosed
from bargein.session.reply import SessionGone
from bargein.session.snapshot import stored_in
from bargein.session.state import Phase

if TYPE_CHECKING:
    from bargein.cluster.peers import Peers
    from bargein.server.edge import Edge
    from bargein.session.elsewhere import Elsewhere

ANSWER_S = 30.0
LONG_S = 3600.0
AGAIN_S = 0.05
AGAIN_MAX_S = 0.5
LOST_S = 20.0
"""How long a watch looks for the owner of its session before its reader is told to come back."""

Shown = Watched | RelayedEvent


class NodeRequest(msgspec.Struct, frozen=True):
    """An operation as one node sends it to another. The sender has checked the token."""

    operation: str
    principal: Principal
    params: Mapping[str, str]
    query: Mapping[str, str]
    key: str | None
    address: str
    body: bytes


class NodeProblem(msgspec.Struct, frozen=True):
    code: Code
    detail: str
    retry_after_s: int | None = None


class NodeAnswer(msgspec.Struct, frozen=True):
    status: int
    body: bytes = b""
    headers: Mapping[str, str] = {}
    note: str = ""
    session: str = ""
    problem: NodeProblem | None = None


class Frame(msgspec.Struct, frozen=True, array_like=True):
    """Events on their way to another node, as JSON with their places in the log. `seq` is how far
    the log is."""

    seq: int
    events: list[tuple[int | None, bytes]] = []


_encode = msgspec.msgpack.Encoder().encode
_request = msgspec.msgpack.Decoder(NodeRequest)
_answer = msgspec.msgpack.Decoder(NodeAnswer)
_frame = msgspec.msgpack.Decoder(Frame)


class Anywhere:
    def __init__(self, edge: "Edge", operations: tuple[Operation, ...]) -> None:
        self._edge = edge
        self._gateway = edge.gateway
        self._operations = {each.name: each for each in operations}

    # --- asking

    async def perform(self, operation: Operation, request: ApiRequest, body: Body) -> Reply | Kept:
        """Performs an operation here, or at the node that has the session."""
        elsewhere = self._gateway.engine.elsewhere
        if elsewhere is None:
            return await self._edge.perform_here(operation, request, body)
        with self._gateway.hold(request.principal.name) as hold:
            hold.resize(len(body))
            return await self._perform(elsewhere, operation, request, body)

    async def _perform(
        self, elsewhere: "Elsewhere", operation: Operation, request: ApiRequest, body: Body
    ) -> Reply | Kept:
        # An operation may empty its body before it finds out that another node has the session.
        copy = bytes(body)
        try:
            return await self._edge.perform_here(operation, request, body)
        except OwnedElsewhere as owner:
            found = owner
        key = request.key
        if key is None and operation.takes_key:
            key = f"node {secrets.token_hex(12)}"
        asked = NodeRequest(
            operation.name,
            request.principal,
            dict(request.params),
            dict(request.query),
            key,
            request.address,
            copy,
        )
        is_long = "wait" in request.query or operation.name in LONG
        within_s = LONG_S if is_long else ANSWER_S
        while True:
            sent = OPERATION + _encode(asked)
            answer = await elsewhere.ask(found.session, found, sent, within_s=within_s)
            if answer is not None:
                return _reply(answer)
            try:
                # The owner died or let it go, and this node has claimed the session.
                again = msgspec.structs.replace(request, key=key)
                return await self._edge.perform_here(operation, again, bytearray(copy))
            except OwnedElsewhere as owner:
                found = owner

    # --- being asked

    async def answer(self, key: str, content: bytes) -> bytes:
        """Performs what another node asks for. Raises `OwnedElsewhere` or `SessionGone` if the
        session is not here any more."""
        asked = _request.decode(content)
        operation = self._operations.get(asked.operation)
        if operation is None:
            problem = Problem(
                Code.NOT_FOUND, f"the node that has the session does not know {asked.operation}"
            )
            return _encode(_refusal(problem))
        request = ApiRequest(
            self._gateway, asked.principal, asked.params, asked.query, asked.key, asked.address
        )
        engine, root = self._gateway.engine, request.params.get("session", "").partition("/")[0]
        try:
            await self._hand_over_if_draining(operation, root)
            was_here = engine.actor_in_memory(root) is not None
            reply = await self._edge.perform_here(operation, request, bytearray(asked.body))
            if was_here and operation.method == "GET" and engine.actor_in_memory(root) is None:
                # The session was lost meanwhile, so this is not the last word about it.
                raise SessionGone(f"{root} has left this node")
        except (OwnedElsewhere, SessionGone, EngineClosed):
            raise
        except Exception as error:  # boundary: the other node passes the failure on
            return _encode(_refusal(as_problem(error)))
        if isinstance(reply, Kept):
            headers = dict(reply.headers or {})
            return _encode(NodeAnswer(reply.status, reply.body, headers, reply.note, reply.session))
        body = msgspec.json.encode(reply.body) if reply.body is not None else b""
        headers = dict(reply.headers or {})
        return _encode(NodeAnswer(reply.status, body, headers, reply.note, reply.session))

    async def _hand_over_if_draining(self, operation: Operation, root: str) -> None:
        """A node that leaves lets a session go that has no turn, so that the asking node can go on
        with it."""
        gateway = self._gateway
        if not gateway.draining.is_set() or operation.while_draining or not root:
            return
        await gateway.engine.hand_over(root)
        raise SessionGone(f"{root} is being handed over")

    # --- watching

    async def frames(self, session: str, after: int | None) -> AsyncGenerator[bytes, None]:
        """Yields the events of a session that is here, for another node."""
        engine = self._gateway.engine
        actor = await engine.actor(session)
        seq = actor.durable_seq if after is None else after
        yield _encode(Frame(seq))
        async with aclosing(_here(self._gateway, session, after)) as batches:
            async for batch in batches:
                events = []
                for event in batch:
                    place = place_of(event)
                    seq = max(seq, place or 0)
                    events.append((place, self._gateway.events.encode(event).content))
                yield _encode(Frame(seq, events))


LONG = (
    "accept_stage",
    "compact_session",
    "delete_session",
    "discard_stage",
    "get_stage",
    "redo_files",
    "rewind_session",
    "undo_accept",
    "undo_turn",
)


def place_of(event: Shown) -> int | None:
    """Returns the event's place in the log; None for what happens between two of its events."""
    if isinstance(event, Recorded | RelayedEvent):
        return event.seq
    return None


async def watch(
    gateway: Gateway, session: str, after: int | None
) -> AsyncGenerator[list[Shown], None]:
    """Like `Session.watch_many`, wherever the session is. Raises `StoreFailed` if its owner cannot
    be found for long."""
    if gateway.peers is None:
        async with aclosing(_here(gateway, session, after)) as here:
            async for batch in here:
                yield batch
        return
    following = _Following(gateway, gateway.peers, session, after)
    while True:
        async with aclosing(following.attempt()) as batches:
            async for batch in batches:
                yield batch
        if gateway.draining.is_set() or await _is_over(gateway, session):
            return
        await following.pause()


class _Following:
    """Follows a session from node to node. `seen` is the last place in the log that was shown."""

    def __init__(self, gateway: Gateway, peers: "Peers", session: str, after: int | None) -> None:
        self._gateway = gateway
        self._peers = peers
        self._session = session
        self._seen = after
        self._why = f"session {session!r} is between two nodes"
        self._came()

    def _came(self) -> None:
        """Something was shown, or the owner lives."""
        self._wait_s = AGAIN_S
        self._give_up_at = anyio.current_time() + LOST_S

    async def attempt(self) -> AsyncGenerator[list[Shown], None]:
        """Yields events until the session leaves the node that has it now."""
        try:
            async with aclosing(_here(self._gateway, self._session, self._seen)) as batches:
                async for batch in batches:
                    self._came()
                    self._note(map(place_of, batch))
                    yield batch
            return
        except OwnedElsewhere as found:
            owner = found
        except (SessionGone, EngineClosed):
            return
        try:
            async with aclosing(self._relayed(owner)) as relayed:
                async for batch in relayed:
                    yield batch
        except RoadBlocked as error:
            self._why = f"{owner}, and {error}"

    async def _relayed(self, owner: OwnedElsewhere) -> AsyncGenerator[list[Shown], None]:
        frames = self._peers.watch(owner.address, self._session, self._seen)
        async with aclosing(frames) as contents:
            async for content in contents:
                self._came()
                if not content:
                    continue
                frame = _frame.decode(content)
                if self._seen is None:
                    self._seen = frame.seq
                seen = self._seen
                events = [each for each in frame.events if each[0] is None or each[0] > seen]
                self._note(place for place, _ in events)
                if events:
                    yield [RelayedEvent(place, encoded) for place, encoded in events]

    def _note(self, places: Iterable[int | None]) -> None:
        self._seen = max((each for each in places if each is not None), default=self._seen)

    async def pause(self) -> None:
        """Waits before the next attempt. Raises `StoreFailed` if no node answered for long."""
        if anyio.current_time() > self._give_up_at:
            raise StoreFailed(self._why, retryable=True)
        await anyio.sleep(self._wait_s)
        self._wait_s = min(self._wait_s * 2, AGAIN_MAX_S)


async def _is_over(gateway: Gateway, session: str) -> bool:
    """Whether the session was ended or deleted, and not only moved."""
    try:
        head = await gateway.engine.store.head(session)
        return head is None or stored_in(head).state.phase is Phase.ENDED
    except StoreFailed:
        return False


async def _here(
    gateway: Gateway, session: str, after: int | None
) -> AsyncGenerator[list[Shown], None]:
    from bargein.session.watching import follow

    async with aclosing(follow(gateway.engine, session, after)) as batches:
        async for batch in batches:
            yield list(batch)


def _refusal(problem: Problem) -> NodeAnswer:
    told = NodeProblem(problem.code, problem.detail, problem.retry_after_s)
    return NodeAnswer(problem.status, problem=told)


def _reply(content: bytes) -> Kept:
    try:
        answer = _answer.decode(content)
    except msgspec.MsgspecError as error:
        raise Unreached(
            f"the session's node answers what cannot be read: {error}", retryable=True
        ) from error
    if answer.problem is not None:
        problem = answer.problem
        raise Problem(problem.code, problem.detail, retry_after_s=problem.retry_after_s)
    return Kept(
        answer.status,
        answer.body,
        note=answer.note,
        headers=dict(answer.headers),
        session=answer.session,
    )
