"""Commands that a tool's code starts through its `ToolContext`, contained from birth.

They get the same environment, working directory, stop ladder and receipt as commands of the
built-in tools. `argv_of` and `shell_of` turn a text into an argument list.
"""

import os
import shutil
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from bargein.cancel import CancelSource, shield
from bargein.contracts.grace import PROCESS_S
from bargein.errors import UserError
from bargein.process import Process, StopReport
from bargein.tools.output import LiveOutput, as_read, stopped_detail
from bargein.tools.tool_environment import ToolEnvironment, wait_and_sweep

if TYPE_CHECKING:
    from bargein.tools.context import ToolContext

Command = str | Sequence[str]


class Ran(msgspec.Struct, frozen=True):
    """A command that has ended, with everything it started. Exactly one of `code` and `signal` is
    set.

    `output` includes standard error. Of long output it contains the beginning and the end.
    """

    code: int | None
    signal: int | None
    output: str
    elapsed_s: float
    timed_out: bool = False

    @property
    def ok(self) -> bool:
        return self.code == 0


class Commands:
    """The commands of one call."""

    def __init__(self, tool_environment: ToolEnvironment, context: "ToolContext") -> None:
        self._tool_environment = tool_environment
        self._context = context
        self._started: list[Process] = []

    async def run(
        self,
        command: Command,
        *,
        cwd: str | None,
        env: Mapping[str, str] | None,
        given: str | bytes | None,
        timeout_s: float | None,
    ) -> Ran:
        context = self._context
        with context.token.child("command", timeout_s=timeout_s) as limit:
            process = await self._start(command, limit, cwd=cwd, env=env, given=given is not None)
            feed = given.encode() if isinstance(given, str) else given
            exited, _ = await wait_and_sweep(process, context, feed=feed)
            timed_out = limit.token.cancelled
        output = as_read(process.output.text())
        return Ran(exited.code, exited.signal, output, exited.elapsed_s, timed_out)

    async def start(
        self, command: Command, *, cwd: str | None, env: Mapping[str, str] | None
    ) -> Process:
        process = await self._start(command, None, cwd=cwd, env=env, given=True)
        self._started.append(process)
        return process

    async def sweep(self) -> tuple[StopReport, ...]:
        """Ends the commands of `start` that still run when the call is over; returns reports on
        the ones it had to end."""
        reports = []
        for process in self._started:
            with shield(PROCESS_S):
                report = await process.stop()
                if not report.found_over:
                    reports.append(report)
                    if self._context.token.cancelled:
                        self._context.note_stop(stopped_detail(process, report))
        return tuple(reports)

    def begin_end(self) -> None:
        """Starts a hurried `sweep` without waiting for it."""
        for process in self._started:
            process.begin_stop(hurry=True)

    async def _start(
        self,
        command: Command,
        source: CancelSource | None,
        *,
        cwd: str | None,
        env: Mapping[str, str] | None,
        given: bool,
    ) -> Process:
        context, tool_environment = self._context, self._tool_environment
        environment = {**tool_environment.environment, **(env or {})}
        return await tool_environment.start(
            argv_of(command, environment.get("PATH", os.defpath)),
            context,
            token=source.token if source is not None else None,
            folder=os.path.join(tool_environment.workspace.root, cwd or "."),
            environment=environment,
            with_input=given,
            on_output=LiveOutput(context.emit, context.token.clock.now),
        )


def argv_of(command: Command, path: str) -> list[str]:
    return [shell_of(path), "-c", command] if isinstance(command, str) else list(command)


def shell_of(path: str) -> str:
    """Returns bash, for which models write, or else sh."""
    found = shutil.which("bash", path=path) or shutil.which("sh", path=path)
    if found is None:
        raise UserError(f"neither bash nor sh is on PATH ({path}), so no command can run")
    return found
