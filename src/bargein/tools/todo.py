"""The `todo` tool: the model writes down its plan, and people see how far it is.

Nothing is kept here. Each call has the whole list, and the last one counts: surfaces show it from
the call's arguments (`todo_of`), also after a restart.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec

from bargein.contracts.tool import Effect
from bargein.errors import ModelMisbehaved
from bargein.tools.declaration import Tool, ToolOptions

__all__ = ["NAME", "TodoItem", "todo_of", "todo_tool"]

NAME = "todo"
ITEMS_MAX = 50
TEXT_CHARACTERS_MAX = 200


class TodoItem(msgspec.Struct, frozen=True):
    text: Annotated[str, msgspec.Meta(min_length=1, max_length=TEXT_CHARACTERS_MAX)]
    state: Literal["open", "doing", "done"] = "open"


async def todo(items: list[TodoItem]) -> str:
    """Write down the plan for work of several steps, and keep it up to date.

    The person sees the list. Give the whole list each time: when you begin, and whenever a step is
    begun or done. Have at most one step in the state doing. Do not use it for a single step.

    Args:
        items: All steps in order, each with its state: open, doing or done.
    """
    if len(items) > ITEMS_MAX:
        raise ModelMisbehaved(f"{len(items)} steps are too many; give at most {ITEMS_MAX}")
    left = sum(each.state != "done" for each in items)
    return f"Noted: {len(items)} steps, {left} left." if items else "Noted: no steps."


def todo_tool() -> Tool[..., Any]:
    def title(arguments: Mapping[str, Any]) -> str:
        done = sum(each.state == "done" for each in arguments["items"])
        return f"{done} of {len(arguments['items'])} done"

    return Tool(todo, NAME, ToolOptions(effect=Effect.NONE, title=title))


class _Arguments(msgspec.Struct):
    items: list[TodoItem]


def todo_of(arguments: str) -> tuple[TodoItem, ...]:
    """Returns the list in the arguments of a call, as JSON; empty if they are not valid."""
    try:
        return tuple(msgspec.json.decode(arguments, type=_Arguments).items)
    except msgspec.MsgspecError:
        return ()
