"""How `terminal` and `python` use the sandbox: the parameter `outside`, and what it asks."""

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from bargein.contracts.model import Text
from bargein.contracts.tool import CallResult
from bargein.process import Process
from bargein.sandbox.command_sandbox import CommandSandbox
from bargein.tools.declaration import Arguments
from bargein.tools.tool_environment import ToolEnvironment

_HOW = "allow it outside, or set sandbox.hosts or sandbox.writable"

F = TypeVar("F", bound=Callable[..., Any])


def leaves_sandbox(tool_environment: ToolEnvironment, arguments: Arguments) -> str:
    """Says why a call needs approval: it leaves the sandbox, or the sandbox does not hold."""
    sandbox = tool_environment.sandbox
    if sandbox is None:
        return ""
    return "it leaves the sandbox" if arguments.get("outside") else sandbox.why_not


def can_be_confined(tool_environment: ToolEnvironment, arguments: Arguments) -> bool:
    """Returns whether the sandbox can keep a call from changing anything."""
    sandbox = tool_environment.sandbox
    return sandbox is not None and sandbox.report.holds and not arguments.get("outside")


def offering_outside(tool_environment: ToolEnvironment) -> Callable[[F], F]:
    """Hides the parameter `outside` from the model where there is no sandbox to leave."""

    def decorate(function: F) -> F:
        if tool_environment.sandbox is None or tool_environment.sandbox.sealed:
            signature = inspect.signature(function)
            shown = [each for each in signature.parameters.values() if each.name != "outside"]
            function.__signature__ = signature.replace(parameters=shown)  # type: ignore[attr-defined]
        return function

    return decorate


def command_is_over(tool_environment: ToolEnvironment, process: Process) -> None:
    """Call it once for every process that `ToolEnvironment.start` started."""
    if tool_environment.sandbox is not None and process.sandbox:
        tool_environment.sandbox.end()


def with_hint(result: CallResult, process: Process, sandbox: CommandSandbox | None) -> CallResult:
    """Adds to the result of a command what the sandbox set aside, and, if the command failed, that
    the sandbox may be the reason."""
    exited = process.exit
    if sandbox is None or not process.sandbox:
        return result
    notes = []
    if moved := sandbox.set_aside():
        notes.append((moved, "the sandbox set aside what it planted for git"))
    failed = exited is not None and exited.code != 0
    if failed and (hint := sandbox.hint(process.output.text())):
        why = "the sandbox may be why"
        notes.append((hint, why if sandbox.sealed else f"{why}: {_HOW}"))
    for text, summary in notes:
        result = msgspec.structs.replace(
            result,
            content=(*result.content, Text(text)),
            summary=f"{result.summary}; {summary}".removeprefix("; "),
        )
    return result
