"""Operations on grants: list what approvals allow for longer than one call, and revoke it.
`SessionPermits.may` decides who may do what."""

from bargein.contracts.choice import choose
from bargein.contracts.permission import GrantScope, KeptGrant, May
from bargein.contracts.visible import visible
from bargein.errors import UserError
from bargein.server.access import Principal
from bargein.server.gateway import Gateway, Opened
from bargein.server.operation import (
    NOTHING_STOPS,
    ApiRequest,
    Operation,
    Parameter,
    Reply,
    lookup,
)
from bargein.server.problems import Code, Problem
from bargein.server.shapes import Done, GrantList, GrantView
from bargein.session.session import Forbidden, Session, TooLate


async def allowed(gateway: Gateway, principal: Principal, root: str, session: Session) -> May:
    """Returns what the principal may change of a session's permissions: nothing for a reader."""
    if gateway.access.right(principal, root) in (None, "read"):
        return May()
    return await session.may(gateway.access.standing_of(principal, root))


@lookup("/sessions/{session}/grants", replies={200: GrantList}, problems=(Code.NOT_FOUND,))
async def list_grants(request: ApiRequest) -> Reply:
    """List what approvals allow for longer than one call: in this session, and for good in the
    project. Only those who may revoke the project's grants see them."""
    opened = await request.open()
    may = await allowed(request.gateway, request.principal, opened.root, opened.session)
    session = await opened.session.grants()
    seen = GrantScope.PROJECT in may.revokes
    project = await opened.session.grants(GrantScope.PROJECT) if seen else ()
    views = [_view(each, GrantScope.SESSION, may) for each in session]
    views += [_view(each, GrantScope.PROJECT, may) for each in project]
    return Reply(200, GrantList(tuple(views)))


def _view(kept: KeptGrant, scope: GrantScope, may: May) -> GrantView:
    grant = kept.grant
    return GrantView(
        grant.id,
        scope,
        grant.tool,
        visible(str(grant)),
        visible(grant.why),
        kept.by,
        kept.at,
        scope in may.revokes,
        grant,
    )


@lookup(
    "/sessions/{session}/grants/{grant}",
    method="DELETE",
    kept=True,
    replies={200: Done},
    problems=(Code.NOT_FOUND, Code.FORBIDDEN),
    query=(Parameter("scope", "string", "`session`, unless given, or `project`"),),
    while_draining=False,
    disconnect=NOTHING_STOPS,
)
async def revoke_grant(request: ApiRequest) -> Reply:
    """Revoke a grant by its id: such calls need approval again. A grant of the project applies to
    every session, and only an admin can revoke it."""
    opened = await request.open("write")
    access, principal = request.gateway.access, request.principal
    scope = _scope(request)
    grant = request.params["grant"]
    try:
        named = await _named(opened, grant, scope)
        await opened.session.revoke(
            grant,
            scope=scope,
            by=principal.name,
            standing=access.standing_of(principal, opened.root),
        )
    except Forbidden as error:
        raise access.why_forbidden(principal, opened.root, str(error)) from None
    except TooLate as error:
        return Reply(200, Done("too_late", str(error)))
    return Reply(200, Done(), note=f"{scope}: {named}")


async def _named(opened: Opened, grant_id: str, scope: GrantScope) -> str:
    """Describes the grant for the audit log."""
    kept = await opened.session.grants(scope)
    return next((visible(str(each.grant)) for each in kept if each.grant.id == grant_id), grant_id)


def _scope(request: ApiRequest) -> GrantScope:
    try:
        return choose(GrantScope, request.query.get("scope", GrantScope.SESSION))
    except UserError as error:
        raise Problem(Code.BAD_REQUEST, f"?scope: {error}") from None


PERMISSION_OPERATIONS: tuple[Operation, ...] = (list_grants, revoke_grant)
