"""The `terminal` tool runs one shell command, contained and shown live.

The command belongs to the call's token: a stop or the time limit ends it with everything it
started. Processes that it leaves running when it ends by itself are ended too, and named.

With `background=true` the call detaches itself as soon as the command has started, and goes on like
a call that the user moved to the background: the session moves the call's token from the turn to
itself, and nothing changes here.
"""

import os
from functools import partial
from typing import Annotated, Any

import anyio.lowlevel
import msgspec

from bargein.calls.words import NO_BACKGROUND, content_of
from bargein.contracts.tool import CallResult, CallStatus, Effect
from bargein.errors import ModelMisbehaved
from bargein.process import Exit, Process, PtySize, StopReport
from bargein.tools.background import Entry, ProcessTable
from bargein.tools.commands import shell_of
from bargein.tools.context import ToolContext
from bargein.tools.declaration import Arguments, Tool, tool
from bargein.tools.output import (
    LiveOutput,
    as_read,
    command_text,
    exit_text,
    live_output,
    stopped_detail,
)
from bargein.tools.sandboxing import (
    can_be_confined,
    command_is_over,
    leaves_sandbox,
    offering_outside,
    with_hint,
)
from bargein.tools.tool_environment import ToolEnvironment, wait_and_sweep

Seconds = Annotated[float, msgspec.Meta(gt=0)]

# Linux limits a single argument to 128 KiB.
_COMMAND_BYTES_MAX = 120_000

# A pager or a password prompt would wait for a person who is not there.
_NOBODY_IS_THERE = {"PAGER": "cat", "GIT_PAGER": "cat", "GIT_TERMINAL_PROMPT": "0"}


def terminal_tool(tool_environment: ToolEnvironment, table: ProcessTable) -> Tool[..., Any]:
    settings = tool_environment.settings
    shell = shell_of(tool_environment.environment.get("PATH", os.defpath))
    plain = {**tool_environment.environment, **_NOBODY_IS_THERE, "TERM": "dumb"}
    on_terminal = {**plain, "TERM": "xterm-256color"}

    def limit_of(arguments: Arguments) -> float | None:
        asked: float | None = arguments["timeout_s"]
        if arguments["background"]:
            return asked
        return min(asked or settings.command_timeout_s, settings.command_timeout_s_max)

    async def start(
        command: str,
        folder: str,
        size: PtySize | None,
        context: ToolContext,
        *,
        background: bool,
        outside: bool,
    ) -> tuple[Entry, LiveOutput]:
        live = live_output(context.show_live, context.token.clock.now)
        process = await tool_environment.start(
            [shell, "-c", command],
            context,
            folder=folder,
            environment=on_terminal if size else plain,
            pty=size,
            with_input=background,
            on_output=live,
            outside=outside,
        )
        context.output_from(lambda: as_read(process.output.text()))
        return table.add(context, command, process, in_background=background), live

    async def run_in_background(
        command: str, folder: str, size: PtySize | None, context: ToolContext, *, outside: bool
    ) -> CallResult:
        if not context.can_detach:
            raise ModelMisbehaved(NO_BACKGROUND)
        with table.starting_in_background(context):
            entry, live = await start(
                command, folder, size, context, background=True, outside=outside
            )
        # If a stop came first, the command is ending with the turn, and `end_of` waits for it.
        context.detach(
            f"Started in the background as {entry.id} (pid {entry.process.pid}). It runs until "
            "it ends, is killed, or the session ends; then a message says how it ended. "
            f"process(action='poll', id='{entry.id}') shows its output."
        )
        return await end_of(entry, live, context)

    async def end_of(entry: Entry, live: LiveOutput, context: ToolContext) -> CallResult:
        try:
            exited, report = await wait_and_sweep(entry.process, context)
        finally:
            live.finish()
            command_is_over(tool_environment, entry.process)
        # Lets the process tool, if it waits for this end, tell the model first.
        await anyio.lowlevel.cancel_shielded_checkpoint()
        if entry.end_known:
            context.outcome_is_known()
        result_of = killed_result if entry.killed else ended_result
        result = result_of(entry.process, exited, report)
        return with_hint(result, entry.process, tool_environment.sandbox)

    @tool(
        asks=partial(leaves_sandbox, tool_environment),
        confined=partial(can_be_confined, tool_environment),
        effect=Effect.UNKNOWN,
        timeout_s=limit_of,
        subject="command",
        granted_by=("command", "cwd"),
        title=lambda arguments: str(arguments["command"]),
        example={"command": "ls -la"},
    )
    @offering_outside(tool_environment)
    async def terminal(
        command: str,
        context: ToolContext,
        cwd: str = ".",
        timeout_s: Seconds | None = None,
        pty: bool = False,
        background: bool = False,
        outside: bool = False,
    ) -> str | CallResult:
        """Run a shell command and get its output and exit code.

        Everything it starts ends with it. It has no input. Use background for servers, watchers and
        interactive programs, and the process tool to work with them.

        Args:
            command: The shell command.
            cwd: The folder to run it in, relative to the workspace.
            timeout_s: Seconds after which it is stopped.
            pty: Run it in a terminal, for programs that insist on one.
            background: Return at once and let it run on; a message says when it has ended.
            outside: Leave the sandbox, in which a command can write only to the workspace and /tmp
                and may have no network. The user has to approve.
        """
        _refuse_unless_runnable(command, cwd)
        folder = _folder(tool_environment, cwd)
        size = PtySize() if pty else None
        if background:
            return await run_in_background(command, folder, size, context, outside=outside)
        entry, live = await start(command, folder, size, context, background=False, outside=outside)
        try:
            return await end_of(entry, live, context)
        finally:
            table.remove(entry)

    return terminal


def ended_result(process: Process, exited: Exit, report: StopReport) -> CallResult:
    """The result of a command that ended by itself."""
    text = command_text(process, exited, report)
    failed = exited.code != 0
    summary = exit_text(exited) if failed else "finished"
    # The model wanted to know the exit code, so the call itself has not failed.
    return CallResult(CallStatus.FINISHED, content_of(text), summary, unsuccessful=failed)


def killed_result(process: Process, exited: Exit, report: StopReport) -> CallResult:
    """The result of a command that the model killed."""
    text = f"Killed with the process tool.\n{command_text(process, exited, report)}"
    detail = stopped_detail(process, report)
    return CallResult(CallStatus.STOPPED, content_of(text), "killed by the model", detail)


def _refuse_unless_runnable(command: str, cwd: str) -> None:
    if "\0" in command or "\0" in cwd:
        raise ModelMisbehaved("a command cannot contain a NUL character.")
    length = len(command.encode())
    if length > _COMMAND_BYTES_MAX:
        raise ModelMisbehaved(
            f"the command has {length} bytes, more than a shell accepts ({_COMMAND_BYTES_MAX}); "
            "write it to a file with write_file, and run that."
        )


def _folder(tool_environment: ToolEnvironment, cwd: str) -> str:
    """Not confined to the workspace as files are: a command can go anywhere anyway."""
    home = tool_environment.environment.get("HOME", "")
    if home and (cwd == "~" or cwd.startswith("~/")):
        cwd = home + cwd[1:]
    return os.path.join(tool_environment.workspace.shown, cwd)
