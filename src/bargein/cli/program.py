"""The terminal program: reads the command line and runs the command.

Exit codes are those of a shell: 0 done, 1 failed, 2 wrong usage, 130 stopped by Ctrl-C, 141 when
nobody reads the output any more.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from bargein.cli.arguments import COMMANDS, command_line
from bargein.cli.streams import NOBODY_READS, forgive_characters, open_what_is_closed, written
from bargein.errors import BargeinError, UserError

if TYPE_CHECKING:
    from bargein.runtime.config import Config
    from bargein.runtime.settings import Value


# A shell runs the first at each start; the second shows the warnings itself.
NOT_WARNED = ("completion", "config")
# These work in the project; what its settings ask for is said, or asked, when they start.
USE_SETTINGS = ("chat", "run", "serve")


def run(arguments: Sequence[str] | None = None, *, own_process: bool = False) -> int:
    """Runs the program and returns its exit code.

    `own_process`: this process runs nothing else, so it removes keys from its environment after
    reading them.
    """
    open_what_is_closed()
    forgive_characters()
    try:
        return written(_run(arguments, own_process))
    except SystemExit as said:
        # Help, a version or wrong usage.
        code = written(said.code if isinstance(said.code, int) else 0)
        raise SystemExit(code) from None


def _run(arguments: Sequence[str] | None, own_process: bool) -> int:
    given = command_line().parse_args(arguments)
    command = given.command or "chat"
    home: Path | None = None
    try:
        config = _configured(command, given)
        home = config.home
        if own_process:
            _hold_keys()
        # Only the command that runs is imported, so that the prompt appears early.
        exit_code: int = import_module(COMMANDS[command].module).main(given, config)
        return exit_code
    except BargeinError as error:
        return _refuse(command, error, home)
    except BaseExceptionGroup as group:
        # A task group wraps errors, and one failure may fail several of its tasks.
        if group.split(BargeinError)[1] is not None:
            raise
        return _refuse(command, _first(group), home)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        return NOBODY_READS
    except OSError:
        code = written(0)
        if code == 0:
            raise
        return code


def _hold_keys() -> None:
    """Keeps other processes from reading the keys, once the configuration has been read."""
    from bargein.sandbox.keyholder import forget_secrets, refuse_tracing
    from bargein.tools.environment import is_secret

    forget_secrets(is_secret, spare=_is_read_later)
    refuse_tracing()


def _is_read_later(name: str) -> bool:
    """OpenTelemetry reads its own variables, and those of a proxy, when it opens."""
    return name.startswith("OTEL_") or name.upper().endswith("_PROXY")


def _refuse(command: str, error: BaseException, home: Path | None) -> int:
    from bargein.cli.chat.paint import harmless
    from bargein.runtime.data_directory import explain_data_directory

    words = str(error) if home is None else explain_data_directory(str(error), home)
    # A server elsewhere may have written them.
    print(f"bargein {command}: {harmless(words)}", file=sys.stderr)
    return 2 if isinstance(error, UserError) else 1


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _configured(command: str, given: argparse.Namespace) -> Config:
    from bargein.runtime.config import load_config, unknown_variables

    config = load_config(folder=_folder(), flags=_flags(given))
    is_mcp_server = command == "mcp" and given.action == "serve"
    if config.left_out and (command in USE_SETTINGS or is_mcp_server):
        from bargein.cli.trusting import ask_at_start, tell_left_out

        if command != "chat":
            for request in config.left_out:
                tell_left_out(request)
        elif ask_at_start(config):
            config = load_config(folder=_folder(), flags=_flags(given))
    if config.mcp is not None and (command in USE_SETTINGS or is_mcp_server):
        for mistake in config.mcp.mistakes:
            print(f"bargein: {mistake}", file=sys.stderr)
    if command not in NOT_WARNED:
        for words in unknown_variables(config.environment):
            print(f"bargein: {words}", file=sys.stderr)
    return config


def _folder() -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError:
        raise UserError("the current folder is gone; change to another one") from None


def _flags(given: argparse.Namespace) -> dict[str, Value]:
    """Returns the options that set settings."""
    named = {
        "model": "model",
        "chat.plain": "plain",
        "mode": "mode",
        "store": "store",
        "sandbox.staged": "staged",
    }
    return {key: getattr(given, name) for key, name in named.items() if hasattr(given, name)}
