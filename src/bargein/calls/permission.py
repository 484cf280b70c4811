"""May this call run? The one decision, from the plan, the mode and what was granted. Pure."""

from bargein.calls.words import read_only
from bargein.contracts.permission import PermissionMode, Permits, Reach
from bargein.contracts.tool import PlannedCall, Question, Refused


def decide(planned: PlannedCall, permits: Permits | None) -> Refused | Question | None:
    """Returns why the call is refused, what the user is to be asked, or None if it may run.
    Without `permits` there is nothing but the rules of the plan."""
    mode = permits.mode if permits is not None else PermissionMode.ASK
    if mode is PermissionMode.PLAN and planned.reach is not Reach.NOTHING:
        return read_only(planned.call.name)
    question = planned.approval
    if question is None or mode is PermissionMode.FULL:
        return None
    if mode is PermissionMode.AUTO_EDIT and planned.reach is Reach.FILES:
        return None
    granted = permits is not None and question.grant is not None and permits.covers(question.grant)
    return None if granted else question
