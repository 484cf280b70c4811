"""The mode and the grants that apply to a session's calls, read anew at each call.

A sub-agent's mode is never looser than that of any session above it, and the grants of the root
session apply to all sessions below it.
"""

from typing import TYPE_CHECKING

import msgspec

from bargein.contracts.permission import (
    Grant,
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
        actor = self._actor
        own = actor.state.permission
        if actor.run is None:
            return own or self.settings.mode
        above = actor.run.parent.permits.mode
        kind = actor.run.mode
        return tightest(above, *(each for each in (own, kind) if each is not None))

    def covers(self, grant: Grant) -> bool:
        if grant in self.root.state.grants:
            return True
        grants = self.settings.grants
        return grants is not None and grants.covers(grant)

    @property
    def root(self) -> "Actor":
        actor = self._actor
        while actor.run is not None:
            actor = actor.run.parent
        return actor

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
