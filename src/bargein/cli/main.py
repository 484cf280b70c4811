"""`bargein`, the terminal program: reads the command line and hands over to the command.

Exit codes are those of a shell: 0 done, 1 failed, 2 wrong usage, 130 stopped by Ctrl-C. A command
that this version does not have yet says so and exits with 2.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from bargein import __version__
from bargein.errors import BargeinError, UserError

EXAMPLES = """\
examples:
  bargein                              chat in the terminal
  bargein run "sum up README.md"       one turn, then exit
  bargein serve --port 8484            the HTTP API and the web page
  bargein doctor                       what this machine can promise
"""

COMMANDS = {
    "chat": "talk to an agent in this terminal (the default)",
    "run": "one turn, then exit",
    "serve": "the HTTP API and the web page",
    "sessions": "list, show, search, export or remove sessions",
    "doctor": "what this machine can promise, and what it cannot",
    "demo": "a short show of what happens when you barge in",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program and return its exit code."""
    given = command_line().parse_args(arguments)
    command = given.command or "chat"
    try:
        return _start(command, given)
    except BargeinError as error:
        print(f"bargein {command}: {error}", file=sys.stderr)
        return 2 if isinstance(error, UserError) else 1
    except KeyboardInterrupt:
        return 130


def _start(command: str, given: argparse.Namespace) -> int:
    # Each command is imported when it is the one: the prompt is there before the rest is read.
    from bargein.cli.config import load_config

    if command == "chat":
        from bargein.cli import chat

        return chat.main(given, load_config())
    if command == "run":
        from bargein.cli import run

        return run.main(given, load_config())
    if command == "sessions":
        from bargein.cli import sessions

        return sessions.main(given, load_config())
    if command == "doctor":
        from bargein.cli import doctor

        return doctor.main(load_config())
    print(f"bargein {command}: not in this version yet ({__version__}).", file=sys.stderr)
    return 2


def command_line() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bargein",
        description="An agent that listens while it works: barge in any time, nothing breaks.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"bargein {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    for name, text in COMMANDS.items():
        added = commands.add_parser(name, help=text, description=text)
        if name == "run":
            _add_run_arguments(added)
        elif name == "sessions":
            _add_sessions_arguments(added)
        elif name == "chat":
            added.add_argument("--resume", metavar="NAME", help="go on with this session")
            added.add_argument("--plain", action="store_true", help="line by line, without drawing")
    return parser


def _add_run_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("prompt", nargs="*", help="what to do; from standard input if left out")
    parser.add_argument("--session", metavar="NAME", help="go on with this session, or begin it")
    parser.add_argument("--json", action="store_true", help="one event a line, as JSON")
    parser.add_argument("--timeout", type=_seconds, metavar="S", help="stop after so many seconds")
    parser.add_argument("--yes", action="store_true", help="approve what tools ask to do")


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1
    if not 0 < seconds < 1e9:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return seconds


def _add_sessions_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION")
    listing = actions.add_parser("list", help="the newest first (the default)")
    listing.add_argument("--limit", type=int, default=20)
    show = actions.add_parser("show", help="one session, to read")
    show.add_argument("session")
    search = actions.add_parser("search", help="where these words were said")
    search.add_argument("words", nargs="+")
    export = actions.add_parser("export", help="one session, to standard output")
    export.add_argument("session")
    export.add_argument("--format", choices=("markdown", "json"), default="markdown")
    remove = actions.add_parser("rm", help="remove sessions for good")
    remove.add_argument("session", nargs="+")
