"""`terminal`: one shell command, contained, watched live, and swept up after.

The command belongs to the call's token: a stop or its time limit ends it and everything it
started. What it leaves running when it ends by itself is ended too, and named. With
`background=true` it belongs to the session instead, and the call returns at once.

Moving a running command to the background (detach) needs nothing here: the session moves the
call's token from the turn to itself, and the call simply goes on.
"""

import os
import shutil
from typing import Annotated, Any

import msgspec

from bargein.contracts.tool import CallResult, CallStatus, Effect
from bargein.errors import ModelMisbehaved, UserError
from bargein.process import PtySize
from bargein.tools.background import ProcessTable
from bargein.tools.context import ToolContext
from bargein.tools.declaration import Arguments, Tool, tool
from bargein.tools.endings import command_text, exit_text
from bargein.tools.output import LiveOutput, as_read
from bargein.tools.results import content_of
from bargein.tools.workshop import Workshop, wait_and_sweep

Seconds = Annotated[float, msgspec.Meta(gt=0)]

# Linux gives a program no single argument of 128 KiB or more.
_COMMAND_BYTES_MAX = 120_000

# A pager or a question for a password would wait for somebody who is not there.
_NOBODY_IS_THERE = {"PAGER": "cat", "GIT_PAGER": "cat", "GIT_TERMINAL_PROMPT": "0"}


def terminal_tool(workshop: Workshop, table: ProcessTable) -> Tool[..., Any]:
    settings = workshop.settings
    shell = _shell(workshop.environment.get("PATH", os.defpath))
    plain = {**workshop.environment, **_NOBODY_IS_THERE, "TERM": "dumb"}
    on_terminal = {**plain, "TERM": "xterm-256color"}

    def limit_of(arguments: Arguments) -> float | None:
        if arguments["background"]:
            return None
        asked: float | None = arguments["timeout_s"]
        return min(asked or settings.command_timeout_s, settings.command_timeout_s_max)

    async def start_in_background(
        command: str, folder: str, limit_s: float | None, size: PtySize | None, context: ToolContext
    ) -> str:
        table.refuse_if_full(context.session_id)
        source = context.session_token.child("background command", timeout_s=limit_s)
        try:
            process = await workshop.start(
                [shell, "-c", command],
                context,
                token=source.token,
                folder=folder,
                environment=on_terminal if size else plain,
                pty=size,
                with_input=True,
            )
        except BaseException:
            source.seal()
            raise
        entry = table.add(context.session_id, context.session_token, command, process, source)
        return (
            f"Started in the background as {entry.id} (pid {process.pid}). It goes on until it "
            f"ends, is killed, or the session ends. process(action='poll', id='{entry.id}') shows "
            "what it writes."
        )

    @tool(
        effect=Effect.UNKNOWN,
        timeout_s=limit_of,
        subject="command",
        title=lambda arguments: str(arguments["command"]),
        example={"command": "ls -la"},
    )
    async def terminal(
        command: str,
        context: ToolContext,
        cwd: str = ".",
        timeout_s: Seconds | None = None,
        pty: bool = False,
        background: bool = False,
    ) -> str | CallResult:
        """Run a shell command and get its output and exit code.

        Whatever it starts is ended with it. It has no input; use background for servers, watchers
        and programs to talk to, and the process tool to look at them.

        Args:
            command: The command, for the shell.
            cwd: The folder to run it in, from the workspace.
            timeout_s: Seconds after which it is stopped.
            pty: Run it in a terminal, for programs that insist on one.
            background: Return at once and let it run on.
        """
        _refuse_unless_runnable(command, cwd)
        folder = _folder(workshop, cwd)
        size = PtySize() if pty else None
        if background:
            return await start_in_background(command, folder, timeout_s, size, context)
        process = await workshop.start(
            [shell, "-c", command],
            context,
            folder=folder,
            environment=on_terminal if size else plain,
            pty=size,
            on_output=LiveOutput(context.show_live, context.token.clock.now),
        )
        context.output_from(lambda: as_read(process.output.text()))
        entry = table.add(context.session_id, context.session_token, command, process, None)
        try:
            exited, report = await wait_and_sweep(process, context)
        finally:
            table.remove(context.session_id, entry)
        text = command_text(process, exited, report)
        # That the call is over says nothing of how the command ended; people see only the summary.
        summary = "finished" if exited.code == 0 else exit_text(exited)
        return CallResult(CallStatus.FINISHED, content_of(text), summary)

    return terminal


def _shell(path: str) -> str:
    """Models write for bash; where there is none, what every system has."""
    found = shutil.which("bash", path=path) or shutil.which("sh", path=path)
    if found is None:
        raise UserError(f"there is neither bash nor sh on PATH ({path}), so no command can be run")
    return found


def _refuse_unless_runnable(command: str, cwd: str) -> None:
    if "\0" in command or "\0" in cwd:
        raise ModelMisbehaved("a command cannot contain a NUL character.")
    length = len(command.encode())
    if length > _COMMAND_BYTES_MAX:
        raise ModelMisbehaved(
            f"the command has {length} bytes, more than a shell is given ({_COMMAND_BYTES_MAX}); "
            "write it to a file with write_file, and run that."
        )


def _folder(workshop: Workshop, cwd: str) -> str:
    """Not confined as files are: a command can go anywhere anyway."""
    home = workshop.environment.get("HOME", "")
    if home and (cwd == "~" or cwd.startswith("~/")):
        cwd = home + cwd[1:]
    return os.path.join(workshop.workspace.root, cwd)
