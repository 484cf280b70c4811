"""One call from beginning to end: plan, approval, run. For calls made by calls, and standalone.

A session does the same in steps of its own, with a commit between them.
"""

from bargein.cancel import Token
from bargein.contracts.model import ToolCall
from bargein.contracts.tool import (
    Approval,
    CallContext,
    CallResult,
    Question,
    QuestionKind,
    Refused,
    Toolbox,
)
from bargein.tools.output import one_line
from bargein.tools.results import not_started, refused


async def invoke(toolbox: Toolbox, call: ToolCall, context: CallContext) -> CallResult:
    """Returns a result in every case. A stop while the user is being asked means: not started.

    To be called outside of a scope of `context.token`: such a scope would take the result away
    from the caller together with the call.
    """
    planned = toolbox.plan(call)
    if isinstance(planned, Refused):
        return refused(planned.content)
    if planned.approval is not None:
        refusal = await _refusal(planned.approval, context)
        if refusal is not None:
            return refusal
    return await toolbox.run(planned, context)


async def _refusal(approval: Question, context: CallContext) -> CallResult | None:
    answer = ""
    with context.token.scope():
        answer = await context.ask(approval, context.token)
    if context.token.cancelled:
        return not_started(context.token)
    if answer == Approval.ALLOW:
        return None
    words = "" if answer in ("", Approval.DENY) else f" The user answered: {one_line(answer, 500)}"
    return refused(f"The user did not allow this call; nothing happened.{words}")


async def nobody_to_ask(question: Question, token: Token) -> str:
    """An `ask` for programs without a person at the other end: no to every approval."""
    if question.kind is QuestionKind.APPROVAL:
        return "there is nobody here who could be asked"
    return "(There is nobody here who could answer. Decide yourself, and say what you assumed.)"
