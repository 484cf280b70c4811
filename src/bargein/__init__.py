"""Bargein: an agent runtime that listens while it works.

The names below are the public ones. Events are in `bargein.events`, the rest of the kernel is in
`bargein.cancel`, and `bargein.sync` is for programs without an event loop; other modules may move.
Each name is declared once, in `_HOMES`, and imported from its home on first use, so that `import
bargein` costs next to nothing and never loads an event loop, a network library or a terminal. It
imports nothing at all: the terminal program has yet to decide what a Ctrl-C means.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from bargein.cancel import Cancelled as Cancelled
    from bargein.cancel import CancelSource as CancelSource
    from bargein.cancel import Cause as Cause
    from bargein.cancel import Reason as Reason
    from bargein.cancel import Token as Token
    from bargein.cancel import current_token as current_token
    from bargein.cancel import is_interrupted as is_interrupted
    from bargein.cancel import shield as shield
    from bargein.contracts.budget import Budget as Budget
    from bargein.contracts.budget import Spent as Spent
    from bargein.contracts.message import HeardSoFar as HeardSoFar
    from bargein.contracts.message import Mode as Mode
    from bargein.contracts.model import Model as Model
    from bargein.contracts.place import SessionPlace as SessionPlace
    from bargein.contracts.receipt import Receipt as Receipt
    from bargein.contracts.receipt import Scope as Scope
    from bargein.contracts.store import Store as Store
    from bargein.contracts.tool import Effect as Effect
    from bargein.errors import BargeinError as BargeinError
    from bargein.errors import BugError as BugError
    from bargein.errors import ModelMisbehaved as ModelMisbehaved
    from bargein.errors import UserError as UserError
    from bargein.errors import WorldError as WorldError
    from bargein.events import TurnOutcome as TurnOutcome
    from bargein.mcp.server import McpServer as McpServer
    from bargein.runtime.agent import Agent as Agent
    from bargein.runtime.engine import Engine as Engine
    from bargein.runtime.placed_agent import PlacedAgent as PlacedAgent
    from bargein.session.hooks import Hooks as Hooks
    from bargein.session.limits import Limits as Limits
    from bargein.session.results import NoOutput as NoOutput
    from bargein.session.results import TurnResult as TurnResult
    from bargein.session.session import Sent as Sent
    from bargein.session.session import Session as Session
    from bargein.session.streaming import TurnStream as TurnStream
    from bargein.session.turn import Turn as Turn
    from bargein.tools import Policy as Policy
    from bargein.tools import ToolContext as ToolContext
    from bargein.tools import tool as tool

__version__ = "0.1.0"

_HOMES = {
    "Agent": "bargein.runtime.agent",
    "Engine": "bargein.runtime.engine",
    "Session": "bargein.session.session",
    "Sent": "bargein.session.session",
    "Turn": "bargein.session.turn",
    "TurnStream": "bargein.session.streaming",
    "TurnResult": "bargein.session.results",
    "NoOutput": "bargein.session.results",
    "TurnOutcome": "bargein.events",
    "SessionPlace": "bargein.contracts.place",
    "PlacedAgent": "bargein.runtime.placed_agent",
    "Mode": "bargein.contracts.message",
    "HeardSoFar": "bargein.contracts.message",
    "Scope": "bargein.contracts.receipt",
    "Receipt": "bargein.contracts.receipt",
    "Budget": "bargein.contracts.budget",
    "Spent": "bargein.contracts.budget",
    "Limits": "bargein.session.limits",
    "Hooks": "bargein.session.hooks",
    "Model": "bargein.contracts.model",
    "Store": "bargein.contracts.store",
    "tool": "bargein.tools",
    "ToolContext": "bargein.tools",
    "Effect": "bargein.contracts.tool",
    "Policy": "bargein.tools",
    "McpServer": "bargein.mcp.server",
    "CancelSource": "bargein.cancel",
    "Cancelled": "bargein.cancel",
    "Cause": "bargein.cancel",
    "Reason": "bargein.cancel",
    "Token": "bargein.cancel",
    "current_token": "bargein.cancel",
    "is_interrupted": "bargein.cancel",
    "shield": "bargein.cancel",
    "BargeinError": "bargein.errors",
    "BugError": "bargein.errors",
    "ModelMisbehaved": "bargein.errors",
    "UserError": "bargein.errors",
    "WorldError": "bargein.errors",
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'bargein' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
