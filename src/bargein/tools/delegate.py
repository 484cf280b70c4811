"""The `delegate` tool gives tasks to sub-agents, which work at the same time.

Each sub-agent is its own session below the call's token, so stopping the call, its turn or the
session stops all of them at once. The call returns what each has said and done; if it is stopped,
the session adds what they had said until then. Detached sub-agents go on in the background, and
each result arrives later as a message.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec

from bargein.contracts.model import Text
from bargein.contracts.permission import Reach
from bargein.contracts.tool import CallResult, CallStatus, ChildReport, ChildTask, Effect
from bargein.tools.context import ToolContext
from bargein.tools.declaration import Tool, ToolOptions

__all__ = ["NAME", "delegate_tool"]

NAME = "delegate"

_DESCRIPTION = """\
Give tasks to sub-agents that work at the same time, each with its own conversation.

Use it for independent work, such as reading several long files or trying several approaches. A
sub-agent knows nothing of this conversation: its task must contain everything it needs. The result
is the last message of each sub-agent.{more}

Args:
    tasks: One for each sub-agent.
    mode: cascade waits for all of them; detach lets them work in the background, and each result
        arrives later as a message.
"""


class Task(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The task of one sub-agent."""

    task: Annotated[str, msgspec.Meta(description="Everything it needs to know to do the task.")]
    agent: Annotated[str, msgspec.Meta(description="The name of a kind of sub-agent.")] = ""
    model: Annotated[str, msgspec.Meta(description="The name of a model.")] = ""
    tools: Annotated[
        list[str] | None, msgspec.Meta(description="The names of the only tools it gets.")
    ] = None
    instructions: Annotated[str, msgspec.Meta(description="How it should work.")] = ""
    timeout_s: Annotated[
        float | None, msgspec.Meta(description="Seconds after which it is stopped.")
    ] = None


def delegate_tool(
    agents: Mapping[str, str] | None = None, models: Sequence[str] = ()
) -> Tool[..., Any]:
    """`agents` maps each kind of sub-agent to what it is good at; `models` lists the models that a
    task may name."""

    async def delegate(
        tasks: list[Task],
        context: ToolContext,
        mode: Literal["cascade", "detach"] = "cascade",
    ) -> CallResult:
        wanted = [_child_task(each) for each in tasks]
        return _result(await context.delegate(wanted, detached=mode == "detach"))

    more = [f"\n- agent {name}: {words}" for name, words in (agents or {}).items()]
    more += [f"\n- model {name}" for name in models]
    delegate.__doc__ = _DESCRIPTION.format(more="\n\nThere are:" + "".join(more) if more else "")
    example = {"tasks": [{"task": "Read src/a.py and say what its public functions do."}]}
    # The reach is NOTHING because each call of a sub-agent is decided on its own.
    options = ToolOptions(effect=Effect.UNKNOWN, title=_title, example=example, reach=Reach.NOTHING)
    return Tool(delegate, NAME, options)


def _child_task(task: Task) -> ChildTask:
    return ChildTask(
        task=task.task,
        agent=task.agent,
        model=task.model,
        tools=None if task.tools is None else tuple(task.tools),
        instructions=task.instructions,
        timeout_s=task.timeout_s,
    )


def _title(arguments: Mapping[str, Any]) -> str:
    tasks: list[Task] = arguments["tasks"]
    first = tasks[0].task if tasks else ""
    whom = f"to {len(tasks)} sub-agents: " if len(tasks) > 1 else ""
    return f"delegate {whom}{first}".rstrip()


def _result(reports: Sequence[ChildReport]) -> CallResult:
    """The call is finished if any sub-agent finished its task."""
    counts: dict[str, int] = {}
    for each in reports:
        word = each.result.status.value
        counts[word] = counts.get(word, 0) + 1
    words = ", ".join(f"{number} {word}" for word, number in counts.items())
    good = (CallStatus.FINISHED, CallStatus.DETACHED)
    any_good = any(each.result.status in good for each in reports)
    status = CallStatus.FINISHED if any_good else CallStatus.FAILED
    texts = [
        "\n".join(part.text for part in each.result.content if isinstance(part, Text))
        for each in reports
    ]
    return CallResult(status, (Text("\n\n".join(texts)),), f"sub-agents: {words}")
