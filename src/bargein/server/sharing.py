"""Operations on sessions that others share with the caller: invitations, accept, hide.

A new member may open a shared session by its id at once. The session joins the member's list and
searches only when the member accepts it. Until then it is an invitation, and counts against a limit
of the person who shares it. A hidden session stays hidden, however often it is shared again.
"""

from bargein.server.access import Consent
from bargein.server.operation import ApiRequest, Operation, Parameter, Reply, lookup, operation
from bargein.server.problems import Code, Problem
from bargein.server.sessions import detail, page_of
from bargein.server.shapes import Done, Nothing, SessionDetail, SessionList

PAGE = 50


@lookup(
    "/invitations",
    replies={200: SessionList},
    query=(
        Parameter("limit", "integer", f"how many at most; {PAGE} unless given"),
        Parameter("before", "string", "`next` of the page before"),
    ),
)
async def list_invitations(request: ApiRequest) -> Reply:
    """List the sessions that others share with the caller and that the caller has neither
    accepted nor hidden, the last updated first."""
    access, principal = request.gateway.access, request.principal
    await access.refresh_lists(principal.name)
    return Reply(200, await page_of(request, access.invited(principal)))


@operation(
    "POST",
    "/sessions/{session}/accept",
    Nothing,
    replies={200: SessionDetail},
    problems=(Code.NOT_FOUND, Code.FORBIDDEN),
    need="read",
)
async def accept_session(request: ApiRequest, body: Nothing) -> Reply:
    """Accept a session that is shared with the caller: it joins their list."""
    root = await _answer(request, Consent.ACCEPTED)
    return Reply(
        200, await detail(request.gateway, request.principal, await request.gateway.head(root))
    )


@operation(
    "POST",
    "/sessions/{session}/hide",
    Nothing,
    replies={200: Done},
    problems=(Code.NOT_FOUND, Code.FORBIDDEN),
    need="read",
)
async def hide_session(request: ApiRequest, body: Nothing) -> Reply:
    """Take a session that is shared with the caller out of their list, or decline the invitation.
    It can still be opened by its id, and accepted."""
    await _answer(request, Consent.HIDDEN)
    return Reply(200, Done())


async def _answer(request: ApiRequest, consent: Consent) -> str:
    opened = await request.open()
    gateway, who = request.gateway, request.principal.name
    if request.principal.read_only:
        raise Problem(Code.FORBIDDEN, "this token is read-only; use one that may change things")
    owned = gateway.access.owned(opened.root)
    if owned is None or who not in owned.members:
        raise Problem(
            Code.BAD_REQUEST, f"session {opened.root} is not shared with {who}: there is no need"
        )

    await gateway.db.consent(opened.root, who, consent)
    gateway.access.consent(opened.root, who, consent)
    return opened.root


SHARING_OPERATIONS: tuple[Operation, ...] = (list_invitations, accept_session, hide_session)
