"""The command line: what can be written after `bargein`, and nothing that is slow to import.

A command is a row of `COMMANDS`, a module with `main(given, config)`, and if it takes arguments a
function in `_ARGUMENTS`.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass

from bargein import __version__
from bargein.cli.gateway_arguments import add_serve_arguments, add_token_arguments
from bargein.cli.names import model_name, session_name
from bargein.cli.streams import as_written

COUNT_MAX = 1_000_000
MODES = ("plan", "ask", "auto-edit", "full")

EXAMPLES = """\
examples:
  bargein                              chat in the terminal
  bargein -c                           go on with the last session
  bargein run "sum up README.md"       one turn, then exit
  bargein serve --port 8484            the HTTP API and the web page
  bargein demo                         one minute of barging in, played
  bargein doctor                       what this machine can promise
"""


RUN_EXAMPLES = """\
examples:
  bargein run "sum up README.md"
  git diff | bargein run "review this"            prompt and input
  bargein run - < task.md                         the input is the prompt
  bargein run --yes --timeout 600 "fix the tests" for scripts: no questions, ten minutes
  bargein run --json "..." | jq .                 one event a line
  bargein run --output-schema city.json "Which city has the Eiffel Tower?" | jq .name

exit codes: 0 answered, 1 failed (or no answer fits the schema), 2 wrong usage, 124 out of time,
130 stopped by Ctrl-C, 141 nobody reads any more
"""


@dataclass(frozen=True, slots=True)
class Command:
    """`module` has `main(given, config)`."""

    help: str
    module: str


COMMANDS = {
    "chat": Command("talk to an agent in this terminal (the default)", "bargein.cli.chat"),
    "run": Command("one turn, then exit", "bargein.cli.run"),
    "serve": Command("the HTTP API and the web page", "bargein.cli.serve"),
    "token": Command("who may use the server: add, list or revoke tokens", "bargein.cli.tokens"),
    "sessions": Command("list, show, search, export or remove sessions", "bargein.cli.sessions"),
    "backup": Command("copy all data to another place, also while in use", "bargein.cli.backups"),
    "restore": Command("take a backup into use", "bargein.cli.backups"),
    "config": Command("what is set, and where each value comes from", "bargein.cli.show_config"),
    "doctor": Command("what this machine can promise, and what it cannot", "bargein.cli.doctor"),
    "demo": Command("a short show of what happens when you barge in", "bargein.cli.demo"),
    "completion": Command("completion for bash, zsh or fish", "bargein.cli.completion"),
}


class Parser(argparse.ArgumentParser):
    """Says of a word that is no command or action which was perhaps meant."""

    def _check_value(self, action: argparse.Action, value: object) -> None:
        if isinstance(action, argparse._SubParsersAction) and value not in action.choices:
            raise argparse.ArgumentError(None, _no_such(str(value), list(action.choices)))
        super()._check_value(action, value)


def _no_such(word: str, known: list[str]) -> str:
    import difflib

    kind = "command" if "run" in known else "action"
    near = difflib.get_close_matches(word, known, n=1)
    if near:
        hint = f"did you mean {near[0]}?"
    elif kind == "command":
        hint = 'to ask something:  bargein run "..."'
    else:
        hint = f"there are {', '.join(known)}"
    return f"there is no {kind} {as_written(word)!r}; {hint}"


def command_line() -> argparse.ArgumentParser:
    parser = Parser(
        prog="bargein",
        description="An agent that listens while it works: barge in any time, nothing breaks.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"bargein {__version__}")
    # Without a command it is a chat, so its options are understood here too.
    _add_chat_arguments(parser)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    for name, command in COMMANDS.items():
        added = commands.add_parser(
            name, help=command.help, description=command.help, allow_abbrev=False
        )
        if name in _ARGUMENTS:
            _ARGUMENTS[name](added)
    return parser


def _add_chat_arguments(parser: argparse.ArgumentParser) -> None:
    # A default here would overwrite what was given before the command.
    silent = argparse.SUPPRESS
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "-c",
        "--continue",
        dest="go_on",
        action="store_true",
        default=silent,
        help="go on with the last session",
    )
    which.add_argument(
        "--resume", type=session_name, metavar="ID", default=silent, help="go on with this session"
    )
    parser.add_argument(
        "--plain", action="store_true", default=silent, help="line by line, without drawing"
    )
    _add_model(parser)
    _add_mode(parser)


def _add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model",
        type=model_name,
        metavar="NAME",
        default=argparse.SUPPRESS,
        help="such as openai:NAME or local",
    )


def _add_mode(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--mode",
        choices=MODES,
        default=argparse.SUPPRESS,
        help="what runs unasked: plan is read only, full asks nothing",
    )


def _add_run_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "prompt",
        type=as_written,
        nargs="*",
        help="what to do; what is piped in is given with it. Left out or -: standard input is all",
    )
    parser.epilog = RUN_EXAMPLES
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "--session", type=session_name, metavar="NAME", help="go on with this session, or begin it"
    )
    parser.add_argument("--json", action="store_true", help="one event a line, as JSON")
    parser.add_argument(
        "--output-schema",
        type=as_written,
        metavar="FILE",
        help="print one JSON object that fits the JSON Schema in FILE, and nothing else",
    )
    parser.add_argument("--timeout", type=_seconds, metavar="S", help="stop after so many seconds")
    parser.add_argument("--yes", action="store_true", help="approve what tools ask to do")
    _add_model(parser)
    _add_mode(parser)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1
    if not 0 < seconds < 1e9:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return seconds


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and 1 <= int(text[:20]) <= COUNT_MAX):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 to {COUNT_MAX}")
    return int(text)


def _add_sessions_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION")
    listing = actions.add_parser("list", help="the newest first (the default)")
    listing.add_argument("--limit", type=_count, default=20, help="how many; 20 unless given")
    show = actions.add_parser("show", help="one session, to read")
    show.add_argument("session", type=as_written)
    search = actions.add_parser("search", help="where these words were said")
    search.add_argument("words", type=as_written, nargs="+")
    export = actions.add_parser("export", help="one session, to standard output")
    export.add_argument("session", type=as_written)
    export.add_argument("--format", choices=("markdown", "json"), default="markdown")
    remove = actions.add_parser("rm", help="remove sessions for good")
    remove.add_argument("session", type=as_written, nargs="+")


def _add_backup_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "destination", type=as_written, metavar="DEST", help="a new directory, for the backup"
    )
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = """\
Everything in the data directory is copied as it is at one moment: sessions, and the server's
tokens, owners and audit log. A server may run meanwhile. The copy is checked, and DEST appears
when it is complete.

examples:
  bargein backup /mnt/backups/bargein-monday
  bargein backup "$HOME/bargein-$(date +%F)"
  BARGEIN_HOME=/var/lib/bargein bargein backup /srv/backups/$(date +%F)
"""


def _add_restore_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "source", type=as_written, metavar="SRC", help="a directory that `bargein backup` made"
    )
    parser.add_argument(
        "--replace",
        action="store_true",
        help="also if there is data already, which is then moved into a folder beside it",
    )
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = """\
The backup is checked first, and nothing is deleted. Nothing may use the data directory meanwhile:
stop the server before.

examples:
  bargein restore /mnt/backups/bargein-monday
  bargein restore --replace /mnt/backups/bargein-monday
  BARGEIN_HOME=/tmp/look bargein restore /mnt/backups/bargein-monday     beside the data in use
"""


def _add_completion_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=("bash", "zsh", "fish"))
    parser.epilog = (
        'bash: eval "$(bargein completion bash)" in ~/.bashrc; zsh: the same in ~/.zshrc; '
        "fish: bargein completion fish > ~/.config/fish/completions/bargein.fish"
    )


def _add_demo_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--fast", action="store_true", help="without the pauses for reading")


def _add_config_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--revoke", type=as_written, metavar="ID", help="take back a grant, by its id in the list"
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION")
    trust = actions.add_parser(
        "trust",
        help="approve what this project's files ask for",
        description="What a project's files set beyond tightening counts when you have approved "
        "exactly that. Shows what waits, and asks.",
    )
    which = trust.add_mutually_exclusive_group()
    which.add_argument("--list", action="store_true", help="what you have said, of all projects")
    which.add_argument(
        "--revoke",
        dest="revoke_trust",
        type=as_written,
        metavar="ID",
        help="forget what you said, by its id in the list",
    )


_ARGUMENTS: dict[str, Callable[[argparse.ArgumentParser], None]] = {
    "chat": _add_chat_arguments,
    "doctor": _add_model,
    "run": _add_run_arguments,
    "serve": add_serve_arguments,
    "token": add_token_arguments,
    "sessions": _add_sessions_arguments,
    "backup": _add_backup_arguments,
    "restore": _add_restore_arguments,
    "completion": _add_completion_arguments,
    "demo": _add_demo_arguments,
    "config": _add_config_arguments,
}
