"""`bargein`, the terminal program: reads the command line and hands over to the command.

Exit codes are those of a shell: 0 done, 1 failed, 2 wrong usage, 130 stopped by Ctrl-C. A command
that this version does not have yet says so and exits with 2.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from bargein import __version__

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
    given, _ = command_line().parse_known_args(arguments)
    command = given.command or "chat"
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
        commands.add_parser(name, help=text)
    return parser
