"""Operations for admins: list and stop what runs, list and revoke tokens, read the audit log, and
list the nodes of a cluster. Also `/me`."""

from collections.abc import Sequence

import anyio

from bargein.contracts.receipt import Receipt
from bargein.contracts.store import ClusterStore, LeasedStore, NodeRow
from bargein.errors import BargeinError
from bargein.server.access import DOOR, revoke_token
from bargein.server.gateway_tables import TokenRow
from bargein.server.operation import (
    NOTHING_STOPS,
    ApiRequest,
    Operation,
    Parameter,
    Reply,
    lookup,
    operation,
)
from bargein.server.problems import Code, Problem
from bargein.server.shapes import (
    AuditPage,
    Done,
    NodeList,
    NodeView,
    Running,
    RunningSession,
    StopAll,
    Stopped,
    TokenList,
    TokenView,
    Whoami,
)
from bargein.session.calls import ActiveCall
from bargein.session.engine import SessionEngine
from bargein.session.session import Session

AUDIT_PAGE = 100
UNFINISHED_PAGE = 500
TOKENS_SHOWN_MAX = 500


@lookup("/me", replies={200: Whoami})
async def whoami(request: ApiRequest) -> Reply:
    """Return who the caller is, and what this server offers."""
    who, settings = request.principal, request.gateway.settings
    return Reply(
        200,
        Whoami(
            who.name,
            who.admin,
            who.read_only,
            settings.model,
            settings.host_tools,
            who.token,
            request.gateway.start,
            settings.workspace if who.sees_all else "",
            settings.places and who.token == DOOR,
            request.gateway.leave_if_idle is not None,
        ),
    )


@lookup("/admin/running", replies={200: Running}, problems=(Code.FORBIDDEN,))
async def list_running(request: ApiRequest) -> Reply:
    """List every session with a running turn or background calls, and its owner."""
    _check_admin(request)
    gateway = request.gateway
    found = []
    for session_id in gateway.engine.in_memory:
        actor = gateway.engine.actor_in_memory(session_id)
        if actor is None or not (actor.state.busy or actor.state.background):
            continue
        owned = gateway.access.owned(session_id.partition("/")[0])
        calls = actor.turn.calls.running if actor.turn is not None else ()
        found.append(
            RunningSession(
                session_id,
                owned.owner if owned is not None else "",
                actor.state.phase,
                actor.state.turn,
                len(actor.state.waiting),
                tuple(map(_named, calls)),
                len(actor.state.background),
                tuple(map(_named, actor.background.values())),
            )
        )
    draining, channels = gateway.draining.is_set(), tuple(gateway.channels())
    return Reply(200, Running(tuple(found), len(gateway.streams), draining, channels))


@operation(
    "POST",
    "/admin/stop",
    StopAll,
    replies={200: Stopped},
    problems=(Code.FORBIDDEN,),
    while_draining=True,
    disconnect="Ends the waiting; the stops have landed and go on.",
)
async def stop_running(request: ApiRequest, body: StopAll) -> Reply:
    """Stop the turns of these sessions, or of all sessions if none is named, and return the
    receipts. In a cluster that means all nodes. The scope `session` stops their background calls
    too."""
    _check_admin(request, change=True)
    engine = request.gateway.engine
    aimed = await _aimed(engine, body.sessions)
    receipts: list[Receipt] = []

    async def stop(session_id: str) -> None:
        try:
            session = Session(engine, session_id)
            receipt = await session.interrupt(scope=body.scope, by=request.principal.name)
        except BargeinError:
            return  # the session has left memory, so nothing of it runs
        if body.sessions is not None or receipt.status == "stopped":
            receipts.append(receipt)

    async with anyio.create_task_group() as group:
        for session_id in aimed:
            group.start_soon(stop, session_id)
    return Reply(200, Stopped(tuple(receipts)), note=body.reason)


async def _aimed(engine: SessionEngine, named: Sequence[str] | None) -> list[str]:
    """Returns the sessions in which something may run: those in memory, and in a cluster all that
    are unfinished, because other nodes may have them."""
    if engine.elsewhere is None:
        chosen = named if named is not None else engine.in_memory
        return [each for each in chosen if engine.actor_in_memory(each) is not None]
    if named is not None:
        return list(named)
    found, after = set(engine.in_memory), ""
    while page := await engine.store.unfinished(limit=UNFINISHED_PAGE, after=after):
        found.update(page)
        after = page[-1]
    return sorted(found)


@lookup(
    "/admin/audit",
    replies={200: AuditPage},
    problems=(Code.FORBIDDEN,),
    query=(
        Parameter("after", "integer", "entries after this number"),
        Parameter("limit", "integer", f"how many at most; {AUDIT_PAGE} unless given"),
    ),
)
async def read_audit(request: ApiRequest) -> Reply:
    """Read the audit log: who did what, in order."""
    _check_admin(request)
    after = request.number("after", default=0, least=0, most=2**62)
    limit = request.number("limit", default=AUDIT_PAGE, least=1, most=1000)
    return Reply(200, AuditPage(tuple(await request.gateway.audit.read(after, limit))))


@lookup("/admin/tokens", replies={200: TokenList}, problems=(Code.FORBIDDEN,))
async def list_tokens(request: ApiRequest) -> Reply:
    """List the bearer tokens, the newest first, without their secrets."""
    _check_admin(request)
    rows = sorted(request.gateway.db.tokens(), key=lambda row: row.created_at, reverse=True)
    return Reply(200, TokenList(tuple(map(_token_view, rows[:TOKENS_SHOWN_MAX]))))


@lookup(
    "/admin/tokens/{token}",
    method="DELETE",
    replies={200: Done},
    problems=(Code.FORBIDDEN,),
    while_draining=False,
    audited=False,
    disconnect=NOTHING_STOPS,
)
async def revoke_bearer_token(request: ApiRequest) -> Reply:
    """Revoke a bearer token at once. Streams that use it end. `too_late` if it is unknown or was
    revoked before."""
    _check_admin(request, change=True)
    token = request.params["token"]
    done = await revoke_token(request.gateway.db, token, by=request.principal.name)
    return Reply(200, Done() if done else Done("too_late", f"there is no valid token {token}"))


@lookup("/admin/nodes", replies={200: NodeList}, problems=(Code.FORBIDDEN,))
async def list_nodes(request: ApiRequest) -> Reply:
    """List the nodes that share the database, the living first."""
    _check_admin(request)
    store = request.gateway.engine.store
    if not (isinstance(store, ClusterStore) and isinstance(store, LeasedStore)):
        return Reply(200, NodeList((), ""))
    rows, failover = await store.nodes(), await store.replication()
    return Reply(200, NodeList(tuple(_node_view(row, store.owner) for row in rows), failover))


def _node_view(row: NodeRow, here: str) -> NodeView:
    # An address also names the certificate, which nobody reads.
    named = {name: getattr(row, name) for name in NodeRow.__struct_fields__}
    named["address"] = row.address.partition("#")[0]
    return NodeView(**named, here=row.id == here)


def _token_view(row: TokenRow) -> TokenView:
    named = {name: getattr(row, name) for name in TokenView.__struct_fields__}
    return TokenView(**named)


def _named(call: ActiveCall) -> str:
    return f"{call.planned.call.name}: {call.planned.title}"


def _check_admin(request: ApiRequest, *, change: bool = False) -> None:
    who = request.principal
    if not who.sees_all or (change and who.read_only):
        raise Problem(
            Code.FORBIDDEN,
            f"{who.name} is not an admin with this token; ask the operator",
        )


ADMIN_OPERATIONS: tuple[Operation, ...] = (
    whoami,
    list_running,
    stop_running,
    read_audit,
    list_tokens,
    revoke_bearer_token,
    list_nodes,
)
