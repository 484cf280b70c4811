"""`ToolEnvironment`: where tools work, and how they start, wait for and sweep up processes."""

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from bargein.cancel import Cancelled, Token, shield
from bargein.contracts.grace import CALLED_S, PROCESS_S
from bargein.errors import WorldError
from bargein.process import (
    CaptureLimits,
    Containment,
    Exit,
    InputClosed,
    Process,
    PtySize,
    StopReport,
)
from bargein.sandbox.command_sandbox import CommandSandbox
from bargein.tools.context import ToolContext
from bargein.tools.output import stopped_detail
from bargein.tools.workspace import Workspace

_START_S_MAX = 10.0
_FOR_EVER_S = 10 * 365 * 86_400.0


class ToolSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds and permissions of the built-in tools."""

    command_timeout_s: float = 600.0
    command_timeout_s_max: float = 7200.0
    python_timeout_s: float = 600.0
    search_timeout_s: float = 20.0
    output_limits: CaptureLimits = CaptureLimits(8 * 1024, 24 * 1024)
    background_max: int = 16
    web_timeout_s: float = 30.0
    web_bytes_max: int = 4 << 20
    web_networks_allowed: tuple[str, ...] = ()
    """Non-public networks that `web_fetch` may reach, such as `127.0.0.0/8`."""
    environment_allowed: tuple[str, ...] = ()
    """Variables that commands get although they look secret."""


def patience_for(context: ToolContext) -> Callable[[], float]:
    """Returns how long the inner calls of a call may still take: the rest of their ladder since
    all of them were told to stop."""
    return lambda: CALLED_S - context.stopping_s()


@dataclass(frozen=True, slots=True)
class ToolEnvironment:
    """`environment` is passed to every process unchanged; it contains no secrets."""

    containment: Containment
    workspace: Workspace
    environment: Mapping[str, str]
    settings: ToolSettings
    sandbox: CommandSandbox | None = None
    """Where the model's commands run, unless they may leave it; None if there is no sandbox."""

    async def start(
        self,
        argv: list[str],
        context: ToolContext,
        *,
        token: Token | None = None,
        folder: str | None = None,
        environment: Mapping[str, str] | None = None,
        pty: PtySize | None = None,
        with_input: bool = False,
        output: CaptureLimits | None = None,
        on_output: Callable[[bytes], None] | None = None,
        outside: bool = True,
        besides: Iterable[str] = (),
    ) -> Process:
        """Starts a command for a call, governed by `token` or else by the call's token.

        Not `outside`: in the sandbox, if there is one; there it may write to the folders `besides`.

        A stop during the start does not lose the process: it is returned with its stop under way,
        so that its end is awaited and reported. If nothing was started, the call counts as not
        started. `sandboxing.command_is_over` has to be called at the end of each.
        """
        process: Process | None = None
        containment, view = self.containment, None
        env = self.environment if environment is None else environment
        if self.sandbox is not None and not outside:
            containment = self.sandbox.containment
            view = self.sandbox.view(
                context.session_id, read_only=context.read_only, besides=besides
            )
            if view is not None:
                env = {**env, **self.sandbox.environment(view)}
                self.sandbox.begin()
        with shield(_START_S_MAX):
            try:
                process = await containment.spawn(
                    argv,
                    # Only in the sandbox is a stage at the workspace's own place.
                    cwd=folder or (self.workspace.root if view is None else self.workspace.shown),
                    env=env,
                    token=token or context.token,
                    pty=pty,
                    stdin="pipe" if with_input else "null",
                    output=output or self.settings.output_limits,
                    on_output=on_output,
                    view=view,
                )
            except Cancelled:
                context.nothing_was_begun()
                raise
            finally:
                if self.sandbox is not None and view is not None and process is None:
                    self.sandbox.end()
        if process is None:
            raise WorldError(f"{argv[0]} did not start within {_START_S_MAX:g} s", retryable=True)
        return process


def child_argv(program: str, *, with_site_packages: bool = False) -> list[str]:
    """Returns the command that runs one of our small programs in its own interpreter.

    It is isolated from the user's environment and folder. Without site packages it starts fastest.
    """
    options = ["-I", "-B", "-u", "-X", "utf8"]
    if not with_site_packages:
        options.append("-S")
    return [sys.executable, *options, str(Path(__file__).with_name("child.py")), program]


async def wait_and_sweep(
    process: Process, context: ToolContext, *, feed: bytes | None = None
) -> tuple[Exit, StopReport]:
    """Waits for the command; then, or when stopped, makes sure that none of its processes is left.

    `feed` is written to its standard input.

    Raises `Cancelled` if the call was stopped before the command was seen to end, because then our
    signal may have ended it. If a stopped command cannot be killed, the wait goes on, so that the
    call is abandoned and keeps its resources.
    """
    in_time = False
    report = StopReport(process.means, False, False, PROCESS_S * 1000, ())
    try:
        if feed is not None:
            await _feed(process, feed)
        exited = await process.wait()
        context.token.check()
        in_time = True
    finally:
        with shield(PROCESS_S):
            report = await process.stop()
        if not in_time:
            context.note_stop(stopped_detail(process, report))
            if report.survivors:
                with shield(_FOR_EVER_S):
                    await process.settled()
    return exited, report


async def _feed(process: Process, text: bytes) -> None:
    try:
        await process.write(text)
    except InputClosed:
        pass  # the process has ended; its exit says how
    process.close_input()
