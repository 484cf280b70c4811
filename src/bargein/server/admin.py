"""For those who run the server: what is going on now, stopping it, and the audit log."""

import anyio

from bargein.contracts.receipt import Receipt
from bargein.errors import BargeinError
from bargein.server.operation import ApiRequest, Operation, Parameter, Reply, lookup, operation
from bargein.server.problems import Code, Problem
from bargein.server.shapes import (
    AuditPage,
    Running,
    RunningSession,
    StopAll,
    Stopped,
    Whoami,
)
from bargein.session.calls import ActiveCall
from bargein.session.session import Session

AUDIT_PAGE = 100


@lookup("/me", replies={200: Whoami})
async def whoami(request: ApiRequest) -> Reply:
    """Who the caller is, and what this server offers."""
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
        ),
    )


@lookup("/admin/running", replies={200: Running}, problems=(Code.FORBIDDEN,))
async def list_running(request: ApiRequest) -> Reply:
    """Every session with a turn in flight or calls in its background, and whose it is."""
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
    return Reply(200, Running(tuple(found), len(gateway.streams), gateway.draining.is_set()))


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
    """Stop the turns of these sessions, all that run if none is named; with the receipts. With
    the scope `session`, what goes on in their background too."""
    _check_admin(request, change=True)
    engine = request.gateway.engine
    named = body.sessions if body.sessions is not None else engine.in_memory
    aimed = [each for each in named if engine.actor_in_memory(each) is not None]
    receipts: list[Receipt] = []

    async def stop(session_id: str) -> None:
        try:
            session = Session(engine, session_id)
            receipt = await session.interrupt(scope=body.scope, by=request.principal.name)
        except BargeinError:
            return  # it has left memory since, so nothing of it runs
        if body.sessions is not None or receipt.status == "stopped":
            receipts.append(receipt)

    async with anyio.create_task_group() as group:
        for session_id in aimed:
            group.start_soon(stop, session_id)
    return Reply(200, Stopped(tuple(receipts)), note=body.reason)


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
    """Who did what, in order."""
    _check_admin(request)
    after = request.number("after", default=0, least=0, most=2**62)
    limit = request.number("limit", default=AUDIT_PAGE, least=1, most=1000)
    return Reply(200, AuditPage(tuple(await request.gateway.audit.read(after, limit))))


def _named(call: ActiveCall) -> str:
    return f"{call.planned.call.name}: {call.planned.title}"


def _check_admin(request: ApiRequest, *, change: bool = False) -> None:
    who = request.principal
    if not who.sees_all or (change and who.read_only):
        raise Problem(
            Code.FORBIDDEN,
            f"this is for admins, which {who.name} with this token is not; ask the operator",
        )


ADMIN_OPERATIONS: tuple[Operation, ...] = (whoami, list_running, stop_running, read_audit)
