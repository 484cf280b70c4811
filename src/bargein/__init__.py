"""Bargein: an agent runtime that listens while it works.

The names below are the public ones, and the only promise: everything else may move. Each is
declared once, in `_HOMES`, and imported from its home when it is first asked for, so that `import
bargein` costs next to nothing and never loads an event loop, a network library or a terminal. It
imports nothing at all: the terminal program has yet to say what a Ctrl-C means.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from bargein.cancel import Cancelled as Cancelled
    from bargein.cancel import CancelSource as CancelSource
    from bargein.cancel import Cause as Cause
    from bargein.cancel import Link as Link
    from bargein.cancel import Outcome as Outcome
    from bargein.cancel import Reason as Reason
    from bargein.cancel import Registration as Registration
    from bargein.cancel import TaskOwner as TaskOwner
    from bargein.cancel import Token as Token
    from bargein.cancel import TokenEnded as TokenEnded
    from bargein.cancel import TooManyAbandoned as TooManyAbandoned
    from bargein.cancel import arm_quit_watchdog as arm_quit_watchdog
    from bargein.cancel import as_current as as_current
    from bargein.cancel import current_token as current_token
    from bargein.cancel import disarm_quit_watchdog as disarm_quit_watchdog
    from bargein.cancel import is_interrupted as is_interrupted
    from bargein.cancel import run_abandonable as run_abandonable
    from bargein.cancel import run_thread as run_thread
    from bargein.cancel import shield as shield
    from bargein.cancel import start_thread as start_thread
    from bargein.contracts.budget import Budget as Budget
    from bargein.contracts.budget import Spent as Spent
    from bargein.contracts.message import Mode as Mode
    from bargein.contracts.receipt import Receipt as Receipt
    from bargein.contracts.receipt import Scope as Scope
    from bargein.errors import BargeinError as BargeinError
    from bargein.errors import BugError as BugError
    from bargein.errors import ModelMisbehaved as ModelMisbehaved
    from bargein.errors import UserError as UserError
    from bargein.errors import WorldError as WorldError
    from bargein.runtime.agent import Agent as Agent
    from bargein.runtime.engine import Engine as Engine
    from bargein.session.results import TurnResult as TurnResult
    from bargein.session.session import Session as Session
    from bargein.session.turn import Turn as Turn
    from bargein.tools import tool as tool

__version__ = "0.1.0"

_HOMES = {
    "CancelSource": "bargein.cancel",
    "Cancelled": "bargein.cancel",
    "Cause": "bargein.cancel",
    "Link": "bargein.cancel",
    "Outcome": "bargein.cancel",
    "Reason": "bargein.cancel",
    "Registration": "bargein.cancel",
    "TaskOwner": "bargein.cancel",
    "Token": "bargein.cancel",
    "TokenEnded": "bargein.cancel",
    "TooManyAbandoned": "bargein.cancel",
    "arm_quit_watchdog": "bargein.cancel",
    "as_current": "bargein.cancel",
    "current_token": "bargein.cancel",
    "disarm_quit_watchdog": "bargein.cancel",
    "is_interrupted": "bargein.cancel",
    "run_abandonable": "bargein.cancel",
    "run_thread": "bargein.cancel",
    "shield": "bargein.cancel",
    "start_thread": "bargein.cancel",
    "BargeinError": "bargein.errors",
    "BugError": "bargein.errors",
    "ModelMisbehaved": "bargein.errors",
    "UserError": "bargein.errors",
    "WorldError": "bargein.errors",
    "Agent": "bargein.runtime.agent",
    "Engine": "bargein.runtime.engine",
    "Budget": "bargein.contracts.budget",
    "Spent": "bargein.contracts.budget",
    "Mode": "bargein.contracts.message",
    "Receipt": "bargein.contracts.receipt",
    "Scope": "bargein.contracts.receipt",
    "Session": "bargein.session.session",
    "TurnResult": "bargein.session.results",
    "Turn": "bargein.session.turn",
    "tool": "bargein.tools",
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
