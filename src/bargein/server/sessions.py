"""The operations on sessions themselves: make, list, look, change, delete."""

import logging
import secrets
import sqlite3
import time
from collections.abc import Awaitable
from contextlib import AsyncExitStack, suppress
from math import inf, isfinite, nan

import msgspec
from msgspec import UNSET

from bargein.contracts.live import ChildView
from bargein.contracts.permission import May, PermissionMode
from bargein.contracts.store import SessionHead, SessionUnreadable
from bargein.contracts.tool import OpenQuestion
from bargein.errors import BargeinError
from bargein.server.access import Principal
from bargein.server.gateway import Gateway, Opened
from bargein.server.keys import REPLAYED, Kept, keep, remember
from bargein.server.operation import ApiRequest, Operation, Parameter, Reply, lookup, operation
from bargein.server.permissions import allowed
from bargein.server.problems import Code, Problem
from bargein.server.references import messages_ref
from bargein.server.shapes import (
    Member,
    NewSession,
    RunningCall,
    SessionChange,
    SessionDetail,
    SessionList,
    SessionView,
    TranscriptView,
    TurnView,
)
from bargein.server.turns import turn_view, wait_settled
from bargein.server.validation_errors import VALUE_CHARACTERS_MAX
from bargein.session.session import Forbidden, Session
from bargein.session.snapshot import stored_in
from bargein.session.state import SessionState

_log = logging.getLogger("bargein.server")

PASSING = "\x01passing "
ID_BYTES = 16
PAGE = 50


@operation(
    "POST",
    "/sessions",
    NewSession,
    replies={201: SessionDetail},
    problems=(Code.FORBIDDEN, Code.ID_REUSED),
    kept=False,
)
async def create_session(request: ApiRequest, body: NewSession) -> Reply:
    """Make a session. Its id is chosen by the server and cannot be guessed, unless an admin names
    it."""
    gateway, principal = request.gateway, request.principal
    if body.id is not None and await _is_there(gateway, principal, body.id):
        session, new = await gateway.engine.session(body.id), False
    else:
        session, new = await make(request, "create_session", body, named=body.id)
    if body.title and new:
        await session.rename(body.title, by=principal.name)
    head = await gateway.head(session.id)
    return Reply(
        201,
        await detail(gateway, principal, head),
        {"location": f"/v1/sessions/{session.id}", **({} if new else REPLAYED)},
        session=session.id,
    )


async def _is_there(gateway: Gateway, principal: Principal, name: str) -> bool:
    """Whether the session of this name exists already. Raises if it may not be made."""
    if not principal.sees_all:
        raise Problem(Code.FORBIDDEN, "only an admin may name a session; leave `id` out")
    if "/" in name or name != name.strip():
        raise Problem(Code.BAD_REQUEST, f"{name!r} cannot be the id of a session; use no slash")
    return await gateway.engine.store.head(name) is not None


async def make(
    request: ApiRequest,
    name: str,
    body: msgspec.Struct,
    *,
    passes: bool = False,
    named: str | None = None,
) -> tuple[Session, bool]:
    """A session, and whether it is new: with the same key it is the one that was made before. One
    that `passes` is to be deleted when its answer is out, also if the server dies before."""
    gateway, principal = request.gateway, request.principal
    _check_may_make(gateway, principal)
    session_id, now = named or new_id(), time.time()

    def own(connection: sqlite3.Connection) -> str:
        # With the key in one transaction: a repeated POST, also after a crash, makes no second.
        known = remember(connection, request, name, body, session_id, now)
        if known == session_id:
            row = (session_id, principal.name, now)
            # Two may name the same one at once.
            connection.execute("INSERT OR IGNORE INTO sessions VALUES (?, ?, ?)", row)
            if passes:
                note = Kept(0, session_id.encode())
                keep(connection, principal.name, PASSING + session_id, b"", note, inf)
        return known

    made = await gateway.book.run(own)
    if gateway.access.owned(made) is None:
        if made != session_id:
            raise Problem(Code.NOT_FOUND, "the session that this key made was deleted since")
        gateway.access.own(made, principal.name, now)
    return await gateway.engine.session(made), made == session_id


def new_id() -> str:
    """Cannot be guessed, and is not taken for an option on a command line."""
    made = secrets.token_urlsafe(ID_BYTES)
    return new_id() if made.startswith("-") else made


def _check_may_make(gateway: Gateway, principal: Principal) -> None:
    if principal.read_only or principal.sessions is not None:
        raise Problem(Code.FORBIDDEN, "this token may not make sessions; use one that may")
    access, most = gateway.access, gateway.limits.sessions_max
    if access.seen_count(principal.name) >= most and len(access.owned_by(principal.name)) >= most:
        raise Problem(
            Code.TOO_MANY,
            f"{principal.name} has {most} sessions; delete some first",
            retry_after_s=60,
        )


@lookup(
    "/sessions",
    replies={200: SessionList},
    query=(
        Parameter("limit", "integer", f"how many at most; {PAGE} unless given"),
        Parameter("before", "string", "`next` of the page before"),
    ),
)
async def list_sessions(request: ApiRequest) -> Reply:
    """The caller's sessions, and those shared with it that it has accepted; the last updated
    first. An admin sees all."""
    principal = request.principal
    return Reply(
        200,
        await page_of(
            request, None if principal.sees_all else request.gateway.access.seen_by(principal)
        ),
    )


async def page_of(request: ApiRequest, sessions: list[str] | None) -> SessionList:
    """The page that was asked for, of these sessions; of all, if None."""
    gateway, principal = request.gateway, request.principal
    limit = request.number("limit", default=PAGE, least=1, most=gateway.limits.page_max)
    before = _cursor(request.query.get("before"))
    if sessions is None:
        heads = await gateway.engine.store.sessions(limit=limit + 1, before=before)
    else:
        found = await _heads(gateway, principal, sessions)
        found.sort(key=lambda head: (head.updated_at, head.id), reverse=True)
        if before is not None:
            found = [head for head in found if (head.updated_at, head.id) < before]
        heads = found[: limit + 1]
    more = len(heads) > limit
    heads = heads[:limit]
    views = tuple(view(gateway, principal, head) for head in heads)
    last = f"{heads[-1].updated_at!r}_{heads[-1].id}" if more else None
    return SessionList(views, last)


async def _heads(gateway: Gateway, principal: Principal, sessions: list[str]) -> list[SessionHead]:
    """Those of many sessions take a while, so one such list of a principal is made at a time."""
    async with AsyncExitStack() as stack:
        if len(sessions) > gateway.limits.page_max:
            await stack.enter_async_context(gateway.heavy(principal.name))
        found = [await gateway.engine.store.head(each) for each in sessions]
    return [head for head in found if head is not None]


@lookup("/sessions/{session}", replies={200: SessionDetail}, problems=(Code.NOT_FOUND,))
async def get_session(request: ApiRequest) -> Reply:
    """One session: what it is doing, its calls, its open questions, its children."""
    opened = await request.open()
    head = await request.gateway.head(opened.session.id)
    return Reply(200, await detail(request.gateway, request.principal, head))


@operation(
    "PATCH",
    "/sessions/{session}",
    SessionChange,
    replies={200: SessionDetail},
    problems=(Code.NOT_FOUND, Code.FORBIDDEN),
)
async def change_session(request: ApiRequest, body: SessionChange) -> Reply:
    """Rename a session, change its permission mode, or say with whom it is shared. Sharing is its
    owner's to decide; a looser mode takes one who may answer its questions."""
    gateway = request.gateway
    opened = await request.open("own" if body.members is not UNSET else "write")
    if body.title is not UNSET:
        await opened.session.rename(body.title, by=request.principal.name)
    if body.members is not UNSET:
        await _share(gateway, opened.root, opened.session.id, body.members)
    if body.mode is not UNSET:
        await _set_mode(request, opened, body.mode)
    head = await gateway.head(opened.session.id)
    note = _shared_with(body.members) if body.members is not UNSET else ""
    if body.mode is not UNSET:
        note = f"mode {body.mode}{f'; {note}' if note else ''}"
    return Reply(200, await detail(gateway, request.principal, head), note=note)


async def _set_mode(request: ApiRequest, opened: Opened, mode: PermissionMode) -> None:
    access, principal = request.gateway.access, request.principal
    try:
        standing = access.standing_of(principal)
        await opened.session.set_mode(mode, by=principal.name, standing=standing)
    except Forbidden as error:
        raise access.why_forbidden(principal, str(error)) from None


def _shared_with(members: dict[str, Member]) -> str:
    """For the audit log, which keeps the beginning of it."""
    named = ", ".join(f"{who} ({role})" for who, role in members.items())
    return f"shared with {len(members)}: {named}" if members else "shared with nobody"


async def _share(gateway: Gateway, root: str, session_id: str, members: dict[str, Member]) -> None:
    if root != session_id or gateway.access.owned(root) is None:
        raise Problem(
            Code.BAD_REQUEST,
            f"{session_id} was not made through this server, or is a child: share its root instead",
        )

    _check_invitations(gateway, root, members)

    def share(connection: sqlite3.Connection) -> None:
        connection.execute("DELETE FROM members WHERE session = ?", (root,))
        connection.execute(
            "DELETE FROM consents WHERE session = ? AND consent != 'hidden' AND principal NOT IN "
            "(SELECT value FROM json_each(?))",
            (root, msgspec.json.encode(list(members)).decode()),
        )
        rows = [(root, principal, str(role)) for principal, role in members.items()]
        connection.executemany("INSERT INTO members VALUES (?, ?, ?)", rows)

    await gateway.book.run(share)
    gateway.access.share(root, members)
    gateway.cut_unshared()


def _check_invitations(gateway: Gateway, root: str, members: dict[str, Member]) -> None:
    """Raises if the owner of this session has invited more than may be to all of its sessions."""
    access, most = gateway.access, gateway.limits.invitations_max
    owned = access.owned(root)
    assert owned is not None
    new = sum(1 for each in members if each not in owned.members)
    others = [each for each in access.owned_by(owned.owner) if each != root]
    here = sum(1 for each in members if each not in owned.consents)
    waiting = here + sum(map(access.invitations_of, others)) if new else 0
    if waiting > most:
        raise Problem(
            Code.TOO_MANY,
            f"{waiting} invitations of {owned.owner} would wait for an answer, and at most {most} "
            "may; share with fewer, or wait until some have answered",
            retry_after_s=60,
        )


@lookup(
    "/sessions/{session}",
    method="DELETE",
    replies={204: None},
    problems=(Code.NOT_FOUND, Code.FORBIDDEN),
    while_draining=False,
    disconnect="Stops nothing: the deletion goes on.",
)
async def delete_session(request: ApiRequest) -> Reply:
    """Stop all that runs in a session and remove it for good."""
    opened = await request.open("own")
    if opened.root != opened.session.id:
        raise Problem(Code.BAD_REQUEST, f"{opened.session.id} is a child: delete {opened.root}")
    await unmake(request.gateway, opened.session, by=request.principal.name)
    return Reply(204)


async def unmake(gateway: Gateway, session: Session, *, by: str) -> None:
    """From the first moment on nobody finds it: a message that came in between would bring a
    session back that belongs to nobody."""
    owned = gateway.access.disown(session.id)

    def disown(connection: sqlite3.Connection) -> None:
        connection.execute("DELETE FROM sessions WHERE id = ?", (session.id,))
        connection.execute("DELETE FROM members WHERE session = ?", (session.id,))
        connection.execute("DELETE FROM replies WHERE key = ?", (PASSING + session.id,))
        connection.execute("DELETE FROM consents WHERE session = ?", (session.id,))

    try:
        # One that cannot be read is not at work, and can be deleted all the same.
        with suppress(SessionUnreadable):
            await session.end(by=by)
        await gateway.engine.store.delete(session.id)
        gateway.engine.unreadable.pop(session.id, None)
        await gateway.book.run(disown)
    except BaseException:
        if owned is not None:
            gateway.access.own(session.id, owned.owner, owned.created_at)
            gateway.access.share(session.id, owned.members)
            for who, consent in owned.consents.items():
                gateway.access.consent(session.id, who, consent)
        raise


def passing_left(gateway: Gateway) -> Awaitable[list[str]]:
    """The sessions that were to pass with their answer, and were left by a server that died."""

    def left(connection: sqlite3.Connection) -> list[str]:
        # Such a key is no client's: theirs are printable.
        found = "SELECT body FROM replies WHERE at = ? AND substr(key, 1, ?) = ?"
        rows = connection.execute(found, (inf, len(PASSING), PASSING)).fetchall()
        return [body.decode() for (body,) in rows]

    return gateway.book.run(left)


async def unmake_all(gateway: Gateway, sessions: list[str]) -> None:
    for session_id in sessions:
        try:
            await unmake(gateway, Session(gateway.engine, session_id), by="server")
        except BargeinError as error:
            _log.warning("session %s was to be deleted and stays: %s", session_id, error)


@lookup(
    "/sessions/{session}/turns/{turn}",
    replies={200: TurnView},
    problems=(Code.NOT_FOUND,),
    query=(
        Parameter("wait", "boolean", "answer when the turn has settled"),
        Parameter("wait_s", "integer", "for so long at most; then it is told as it stands"),
    ),
    disconnect="Ends the waiting; the turn goes on.",
)
async def get_turn(request: ApiRequest) -> Reply:
    """How a turn ended, or how far it is."""
    opened = await request.open()
    turn = request.params["turn"]
    if request.flag("wait", default=False):
        most = int(request.gateway.limits.wait_s_max)
        wait_s = request.number("wait_s", default=60, least=0, most=most)
        await wait_settled(request.gateway, opened.session, turn, wait_s)
        request.gateway.check_token(request.principal)
        opened = await request.open()
    return Reply(200, await turn_view(opened.session, turn))


@lookup(
    "/sessions/{session}/transcript",
    replies={200: TranscriptView},
    problems=(Code.NOT_FOUND, Code.TOO_LARGE),
)
async def get_transcript(request: ApiRequest) -> Reply:
    """What the model has been shown, in order. Images are told by type and size."""
    opened = await request.open()
    async with request.gateway.heavy(request.principal.name):
        head = await request.gateway.head(opened.session.id)
        said, most = stored_in(head).accounts.said_bytes, request.gateway.limits.answer_bytes_max
        if said > most:
            raise Problem(
                Code.TOO_LARGE,
                f"{said} bytes were said in {opened.session.id}, and at most {most} are sent as a "
                "transcript; read its events, which come piece by piece",
            )
        messages = messages_ref(await opened.session.transcript())
    return Reply(200, TranscriptView(messages))


# --- views


def view(gateway: Gateway, principal: Principal, head: SessionHead) -> SessionView:
    engine = gateway.engine
    unreadable = engine.unreadable.get(head.id, "")
    actor = engine.actor_in_memory(head.id)
    if actor is not None:
        state, waiting = actor.state, len(actor.state.waiting)
    else:
        try:
            stored = stored_in(head)
            state, waiting = stored.state, len(stored.waiting)
        except SessionUnreadable as error:
            state, waiting, unreadable = SessionState(), 0, str(error)
    owned = gateway.access.owned(head.root)
    return SessionView(
        id=head.id,
        title=head.title,
        owner=owned.owner if owned is not None else "",
        access=gateway.access.right(principal, head.root) or "read",
        created_at=head.created_at,
        updated_at=head.updated_at,
        phase=state.phase,
        turn=state.turn,
        waiting=waiting,
        held=state.held,
        asking=len(state.questions),
        last_seq=head.seq,
        background=len(state.background),
        unreadable=unreadable,
    )


async def detail(gateway: Gateway, principal: Principal, head: SessionHead) -> SessionDetail:
    owned = gateway.access.owned(head.root)
    session = Session(gateway.engine, head.id)
    questions: tuple[OpenQuestion, ...] = ()
    children: tuple[ChildView, ...] = ()
    # `view` says that it cannot be read; what can be said of it all the same is said.
    mode, may = PermissionMode.ASK, May()
    with suppress(SessionUnreadable):
        mode = await session.mode()
        may = await allowed(gateway, principal, head.root, session)
        questions = await session.questions()
        children = await session.children()
    return SessionDetail(
        session=view(gateway, principal, head),
        mode=mode,
        may=may,
        members=dict(owned.members) if owned is not None else {},
        calls=_calls(gateway, head.id),
        questions=questions,
        children=children,
    )


def _calls(gateway: Gateway, session_id: str) -> tuple[RunningCall, ...]:
    actor = gateway.engine.actor_in_memory(session_id)
    if actor is None:
        return ()
    turn = actor.turn.calls.running if actor.turn is not None else ()
    now = actor.clock.now()
    return tuple(
        RunningCall(
            each.id,
            each.planned.call.name,
            each.planned.title,
            each.detached,
            now - each.began_at,
        )
        for each in (*turn, *actor.background.values())
    )


def _cursor(text: str | None) -> tuple[float, str] | None:
    if text is None:
        return None
    at, _, session_id = text.partition("_")
    try:
        moment = float(at)
    except ValueError:
        moment = nan
    if not isfinite(moment):
        shown = text[:VALUE_CHARACTERS_MAX]
        raise Problem(
            Code.BAD_REQUEST, f"?before={shown}: give `next` of the page before, as it came"
        )
    return moment, session_id


SESSION_OPERATIONS: tuple[Operation, ...] = (
    create_session,
    list_sessions,
    change_session,
    delete_session,
    get_turn,
    get_transcript,
    get_session,
)
