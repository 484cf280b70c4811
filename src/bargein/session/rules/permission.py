"""Rules for what a session permits: its mode, and what approvals have granted. Pure."""

from bargein.contracts.event import Granted, GrantRevoked, PermissionChanged
from bargein.contracts.permission import GrantScope, KeptGrant
from bargein.session.commands import AddGrant, Done, Log, Refuse, RevokeGrant, SetMode
from bargein.session.rules.moves import Decision, change
from bargein.session.state import SessionState

GRANTS_MAX = 200
"""So many grants a session keeps; then the oldest is forgotten, and asked about again."""


def set_mode(state: SessionState, command: SetMode) -> Decision:
    if state.permission is command.mode:
        return state, (Done(),)
    changed = PermissionChanged(command.mode, command.by)
    return change(state, permission=command.mode), (Log((changed,)), Done())


def add_grant(state: SessionState, command: AddGrant) -> Decision:
    granted = Granted(command.grant, command.scope, command.by)
    if command.scope is GrantScope.SESSION:
        if any(each.grant == command.grant for each in state.grants):
            return state, (Done(),)
        kept = KeptGrant(command.grant, command.by, command.at)
        state = change(state, grants=(*state.grants, kept)[-GRANTS_MAX:])
    return state, (Log((granted,)), Done())


def revoke_grant(state: SessionState, command: RevokeGrant) -> Decision:
    revoked = GrantRevoked(command.grant, command.by, command.scope)
    if command.scope is GrantScope.PROJECT:
        return state, (Log((revoked,)), Done())
    left = tuple(each for each in state.grants if each.grant.id != command.grant)
    if len(left) == len(state.grants):
        return state, (Refuse("too_late", f"there is no grant {command.grant} in this session"),)
    return change(state, grants=left), (Log((revoked,)), Done())
