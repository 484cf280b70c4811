"""The operations on sessions themselves: make, list, read, change, delete."""

import logging
import secrets
import time
from collections.abc import Awaitable
from contextlib import AsyncExitStack, suppress
from math import isfinite, nan

import msgspec
from msgspec import UNSET

from bargein.contracts.live import ChildView
from bargein.contracts.permission import May, PermissionMode
from bargein.contracts.store import SessionHead, SessionUnreadable
from bargein.contracts.tool import OpenQuestion
from bargein.errors import BargeinError
from bargein.server.access import Principal
from bargein.server.gateway import Gateway, Opened
from bargein.server.keys import REPLAYED, new_owner, reused
from bargein.server.operation import ApiRequest, Operation, Parameter, Reply, lookup, operation
from bargein.server.permissions import allowed
from bargein.server.problems import Code, Problem
from bargein.server.shapes import (
    ForkWanted,
    Member,
    NewSession,
    RunningCall,
    SessionChange,
    SessionDetail,
    SessionList,
    SessionView,
)
from bargein.server.validation_errors import VALUE_CHARACTERS_MAX
from bargein.session.forking import AlreadyBegun, read_fork
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


@operation(
    "POST",
    "/sessions/{session}/fork",
    ForkWanted,
    replies={201: SessionDetail},
    problems=(Code.NOT_FOUND, Code.FORBIDDEN),
    kept=False,
)
async def fork_session(request: ApiRequest, body: ForkWanted) -> Reply:
    """Make a session of the caller's that begins with what this one said until the end of a turn.
    It works in the same place. The one that is forked is unchanged."""
    gateway, principal = request.gateway, request.principal
    opened = await request.open()
    _check_may_make(gateway, principal)
    async with gateway.heavy(principal.name):
        forked = await read_fork(opened.session, body.turn)
    if opened.right != "own":
        # Only the owner decides where commands run.
        forked = msgspec.structs.replace(forked, place=None)
    session, new = await make(request, f"fork_session {opened.session.id}", body)
    if not await session.position():
        # Perhaps made by the same request before, which was cut off; or it is made beside this one.
        with suppress(AlreadyBegun):
            await forked.begin(session, by=principal.name)
    return Reply(
        201,
        await detail(gateway, principal, await gateway.head(session.id)),
        {"location": f"/v1/sessions/{session.id}", **({} if new else REPLAYED)},
        note=opened.root,
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
    """Makes a session, or finds the one that this Idempotency-Key made before. Returns it and
    whether it is new. A session that `passes` is noted in the database for deletion after its
    answer, so that the next server deletes it if this one dies."""
    gateway, principal = request.gateway, request.principal
    _check_may_make(gateway, principal)
    session_id, now = named or new_id(), time.time()

    new = new_owner(request, name, body, session_id, now)
    if passes:
        new = msgspec.structs.replace(new, passing=PASSING + session_id)
    known = await gateway.db.own(new)
    if known is not None and known.fingerprint != new.fingerprint:
        raise reused(request.key or "")
    made = known.body.decode() if known is not None else session_id
    if known is not None and gateway.access.owned(made) is None:
        await gateway.access.refresh((made,))
    if gateway.access.owned(made) is None:
        if made != session_id:
            raise Problem(Code.NOT_FOUND, "the session made with this key was deleted since")
        gateway.access.own(made, principal.name, now)
    return await gateway.engine.session(made), made == session_id


def new_id() -> str:
    """Returns an id that cannot be guessed and does not look like an option on a command line."""
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
    """List the caller's sessions and the shared ones it has accepted, the last updated first. An
    admin sees all sessions."""
    access, principal = request.gateway.access, request.principal
    if principal.sees_all:
        return Reply(200, await page_of(request, None))
    await access.refresh_lists(principal.name)
    return Reply(200, await page_of(request, access.seen_by(principal)))


async def page_of(request: ApiRequest, sessions: list[str] | None) -> SessionList:
    """Returns the page that the request asks for, of these sessions, or of all if None."""
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
    """Reads the heads. Many take a while, so each principal's long lists are made one by one."""
    async with AsyncExitStack() as stack:
        if len(sessions) > gateway.limits.page_max:
            await stack.enter_async_context(gateway.heavy(principal.name))
        found = [await gateway.engine.store.head(each) for each in sessions]
    return [head for head in found if head is not None]


@lookup("/sessions/{session}", replies={200: SessionDetail}, problems=(Code.NOT_FOUND,))
async def get_session(request: ApiRequest) -> Reply:
    """Read a session: what it is doing, its calls, its open questions, its children."""
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
    """Rename a session, change its permission mode, or share it. Only its owner may share it, and
    only those who may answer its questions may loosen the mode."""
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
        standing = access.standing_of(principal, opened.root)
        await opened.session.set_mode(mode, by=principal.name, standing=standing)
    except Forbidden as error:
        raise access.why_forbidden(principal, opened.root, str(error)) from None


def _shared_with(members: dict[str, Member]) -> str:
    """Describes the members for the audit log, which may cut off the end."""
    named = ", ".join(f"{who} ({role})" for who, role in members.items())
    return f"shared with {len(members)}: {named}" if members else "shared with nobody"


async def _share(gateway: Gateway, root: str, session_id: str, members: dict[str, Member]) -> None:
    if root != session_id or gateway.access.owned(root) is None:
        raise Problem(
            Code.BAD_REQUEST,
            f"{session_id} was not made through this server, or is a child: share its root instead",
        )

    async with gateway.sharing:
        if gateway.access.owned(root) is None:
            raise Problem(Code.NOT_FOUND, f"{session_id} was deleted meanwhile")
        _check_invitations(gateway, root, members)
        await gateway.db.share(root, members)
        gateway.access.share(root, members)
    gateway.cut_unshared()


def _check_invitations(gateway: Gateway, root: str, members: dict[str, Member]) -> None:
    """Raises `Problem` if too many invitations of the owner, to all its sessions, would wait."""
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
    """Stop everything in a session and delete it for good."""
    opened = await request.open("own")
    if opened.root != opened.session.id:
        raise Problem(Code.BAD_REQUEST, f"{opened.session.id} is a child: delete {opened.root}")
    await unmake(request.gateway, opened.session, by=request.principal.name)
    return Reply(204)


async def unmake(gateway: Gateway, session: Session, *, by: str) -> None:
    """Ends and deletes a session. Nobody finds it from the first moment on, because a message sent
    meanwhile would make it again, without an owner. If a step fails or is cancelled, the session
    belongs to its owner and members again."""
    owned = gateway.access.disown(session.id)

    try:
        # A session that cannot be read does not run, and can be deleted all the same.
        with suppress(SessionUnreadable):
            await session.end(by=by)
        await gateway.engine.store.delete(session.id)
        gateway.engine.unreadable.pop(session.id, None)
        await gateway.db.disown(session.id, PASSING + session.id)
        gateway.access.forget(session.id)
    except BaseException:
        if owned is not None:
            gateway.access.own(session.id, owned.owner, owned.created_at)
            gateway.access.share(session.id, owned.members)
            for who, consent in owned.consents.items():
                gateway.access.consent(session.id, who, consent)
        raise
    if gateway.guests is not None:
        await gateway.guests.unshare(session.id)


def passing_left(gateway: Gateway) -> Awaitable[list[str]]:
    """Returns passing sessions that a dead server left behind: they outlived their answer."""
    # No client has such a key: theirs are printable.
    return gateway.db.passing(PASSING)


async def unmake_all(gateway: Gateway, sessions: list[str]) -> None:
    for session_id in sessions:
        try:
            await unmake(gateway, Session(gateway.engine, session_id), by="server")
        except BargeinError as error:
            _log.warning("session %s could not be deleted: %s", session_id, error)


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
        workspace=state.place.workspace if state.place is not None else "",
    )


async def detail(gateway: Gateway, principal: Principal, head: SessionHead) -> SessionDetail:
    owned = gateway.access.owned(head.root)
    session = Session(gateway.engine, head.id)
    questions: tuple[OpenQuestion, ...] = ()
    children: tuple[ChildView, ...] = ()
    # An unreadable session has only a view, which says so; the rest keeps its defaults.
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
    fork_session,
    list_sessions,
    change_session,
    delete_session,
    get_session,
)
