"""Operations on a chat that is shared with guests. Only the owner's own door may share one, because
that opens an address on this machine."""

from typing import TYPE_CHECKING

from bargein.contracts.guests import Invited, SharedView, Unshared
from bargein.server.access import DOOR
from bargein.server.operation import NOTHING_STOPS, ApiRequest, Operation, Reply, lookup, operation
from bargein.server.problems import Code, Problem
from bargein.server.shapes import GuestChange, GuestWanted

if TYPE_CHECKING:
    from bargein.server.guests import Guests


@operation(
    "POST",
    "/sessions/{session}/guests",
    GuestWanted,
    replies={201: Invited},
    problems=(Code.NOT_FOUND, Code.FORBIDDEN),
    kept=False,
)
async def invite_guest(request: ApiRequest, body: GuestWanted) -> Reply:
    """Invite one more guest, who may read and send messages; return an address that works once.
    Only for terminals of the user who runs the server, by its unix socket."""
    root = await _root(request)
    address, shared = await _guests(request).invite(root, body.name)
    return Reply(201, Invited(address, shared.waiting[-1], shared), note=shared.waiting[-1])


@lookup("/sessions/{session}/guests", replies={200: SharedView}, problems=(Code.NOT_FOUND,))
async def list_guests(request: ApiRequest) -> Reply:
    """Read the guests of a session and the address at which they come in."""
    return Reply(200, _guests(request).view(await _root(request)))


@operation(
    "PATCH",
    "/sessions/{session}/guests/{guest}",
    GuestChange,
    replies={200: SharedView},
    problems=(Code.NOT_FOUND, Code.FORBIDDEN),
    kept=False,
)
async def change_guest(request: ApiRequest, body: GuestChange) -> Reply:
    """Let a guest approve calls, or no longer."""
    root = await _root(request)
    name = request.params["guest"]
    shared = await _guests(request).let_approve(root, name, approves=body.approves)
    return Reply(200, shared, note=f"approves: {body.approves}")


@lookup(
    "/sessions/{session}/guests",
    method="DELETE",
    replies={200: Unshared},
    problems=(Code.NOT_FOUND, Code.FORBIDDEN),
    disconnect=NOTHING_STOPS,
)
async def unshare_session(request: ApiRequest) -> Reply:
    """End the sharing of a session: its guests are out at once, and its invitations stop
    working."""
    root = await _root(request)
    return Reply(200, Unshared(await _guests(request).unshare(root)))


async def _root(request: ApiRequest) -> str:
    if request.principal.token != DOOR:
        raise Problem(
            Code.FORBIDDEN, "only a terminal of the user who runs this server shares its sessions"
        )
    return (await request.open("own")).root


def _guests(request: ApiRequest) -> "Guests":
    guests = request.gateway.guests
    if guests is None:
        raise Problem(Code.BAD_REQUEST, "this server does not share sessions with guests")
    return guests


GUEST_OPERATIONS: tuple[Operation, ...] = (
    invite_guest,
    list_guests,
    change_guest,
    unshare_session,
)
