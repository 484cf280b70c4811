"""The mode and the grants that apply to a session's calls, read anew at each call.

A sub-agent's mode is never looser than that of any session above it, and the grants of the root
session apply to all sessions below it.
"""

from typing import TYPE_CHECKING

import msgspec

from bargein.contracts.permission import (
    Grant,
    GrantScope,
    May,
    PermissionMode,
    ProjectGrants,
    Standing,
    tightest,
)
from bargein.contracts.tool import Approval, Question

if TYPE_CHECKING:
    from bargein.session.actor import Actor


class PermissionSettings(msgspec.Struct, frozen=True):
    """An engine's settings for all its sessions. `mode` applies to sessions whose mode nobody has
    set. `answerable_by` is the standing that answers need. Without `grants` nothing can be granted
    for longer than a session."""

    mode: PermissionMode = PermissionMode.ASK
    answerable_by: Standing = Standing.WRITER
    grants: ProjectGrants | None = None


class SessionPermits:
    """One session's `contracts.permission.Permits`."""

    __slots__ = ("_actor", "settings")

    def __init__(self, actor: "Actor", settings: PermissionSettings) -> None:
        self._actor = actor
        self.settings = settings

    @property
    def mode(self) -> PermissionMode:
        own = self._actor.state.permission
        if self._actor.run is None:
            return own or self.settings.mode
        return self.loosest if own is None else tightest(own, self.loosest)

    @property
    def loosest(self) -> PermissionMode:
        """The loosest mode that this session can be in: a sub-agent's is bound by its parent's and
        by what its kind may."""
        run = self._actor.run
        if run is None:
            return PermissionMode.FULL
        above = run.parent.permits.mode
        return above if run.mode is None else tightest(above, run.mode)

    def covers(self, grant: Grant) -> bool:
        if any(each.grant == grant for each in self.root.state.grants):
            return True
        grants = self.settings.grants
        return grants is not None and grants.covers(grant)

    @property
    def root(self) -> "Actor":
        actor = self._actor
        while actor.run is not None:
            actor = actor.run.parent
        return actor

    def may(self, standing: Standing) -> May:
        """Return what a person of this standing may do here: the rule of every surface.

        A looser mode answers questions before they are asked, so only people who may answer them
        can choose it. Everybody who may send messages can choose a tighter mode, and revoke a grant
        of the session. A grant for always holds in other sessions too, so only the owner can make
        and revoke it."""
        settings = self.settings
        approves = standing.covers(settings.answerable_by)
        owns = standing.covers(Standing.OWNER) and settings.grants is not None
        loosest = self.loosest if approves else self.mode
        return May(
            answers=tuple(each for each in Standing if standing.covers(each)),
            choices=tuple(each for each in Approval if owns or each is not Approval.ALWAYS),
            modes=tuple(each for each in PermissionMode if each.looseness <= loosest.looseness),
            revokes=tuple(each for each in GrantScope if owns or each is not GrantScope.PROJECT),
        )

    def asked(self, question: Question) -> Question:
        """Complete a question before it is asked: set who may answer it, and remove the choice
        `always` if nothing can be granted for a project."""
        needed = self.settings.answerable_by
        if not question.answerable_by.covers(needed):
            question = msgspec.structs.replace(question, answerable_by=needed)
        if question.grant is not None and self.settings.grants is None:
            choices = tuple(each for each in question.choices if each != Approval.ALWAYS)
            question = msgspec.structs.replace(question, choices=choices)
        return question
