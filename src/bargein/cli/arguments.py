"""The command line: what can follow `bargein`. Imports nothing that is slow.

A command is a row of `COMMANDS`, a module with `main(given, config)`, and, if it takes arguments, a
function in `_ARGUMENTS`.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bargein import __version__
from bargein.cli.gateway_arguments import (
    add_channels_arguments,
    add_serve_arguments,
    add_token_arguments,
)
from bargein.cli.names import model_name, session_name
from bargein.cli.streams import as_written

COUNT_MAX = 1_000_000
MODES = ("plan", "ask", "auto-edit", "full")

EXAMPLES = """\
examples:
  bargein                              chat in the terminal
  bargein -c                           continue the last session
  bargein run "sum up README.md"       one turn, then exit
  bargein serve --port 8484            the HTTP API and the web page
  bargein demo                         a one-minute demonstration of barging in
  bargein doctor                       check what works on this machine
"""


RUN_EXAMPLES = """\
examples:
  bargein run "sum up README.md"
  git diff | bargein run "review this"            prompt and input
  bargein run - < task.md                         standard input is the prompt
  bargein run --yes --timeout 600 "fix the tests" for scripts: no questions, ten minutes
  bargein run --json "..." | jq .                 one event per line
  bargein run --output-schema city.json "Which city has the Eiffel Tower?" | jq .name

exit codes: 0 answered, 1 failed (or no answer fits the schema), 2 wrong usage, 124 out of time,
130 stopped by Ctrl-C, 141 nobody reads the output
"""


ATTACH_EXAMPLES = """\
The token is read from #token= in the address, else from BARGEIN_TOKEN, else from the terminal.

examples:
  bargein attach http://127.0.0.1:8484/#token=...
  BARGEIN_TOKEN=... bargein attach https://agents.example -c
"""

GO_ON = "continue the last session of this folder"
GO_ON_THERE = "continue the last session"
SHARE = "let a guest into the chat: show an address and a QR code, as /share does"
ANY_FOLDER = "with -c: the last session of any folder"
STAGED = "change a copy of the folder, until you accept that with /stage"


@dataclass(frozen=True, slots=True)
class Subcommand:
    """`module` has `main(given, config)`."""

    help: str
    module: str


COMMANDS = {
    "chat": Subcommand("talk to an agent in this terminal (the default)", "bargein.cli.chat"),
    "host": Subcommand("run this user's sessions; terminals start it", "bargein.cli.host"),
    "attach": Subcommand("talk to an agent of a server elsewhere", "bargein.cli.attach"),
    "run": Subcommand("one turn, then exit", "bargein.cli.run"),
    "stop": Subcommand("stop everything that runs, in all sessions", "bargein.cli.stop"),
    "serve": Subcommand("the HTTP API and the web page", "bargein.cli.serve"),
    "token": Subcommand("add, list or revoke tokens for the server", "bargein.cli.tokens"),
    "sessions": Subcommand("list, show, search, export or remove sessions", "bargein.cli.sessions"),
    "mcp": Subcommand(
        "add, list, test, sign in to or remove MCP servers; serve as one", "bargein.cli.mcp"
    ),
    "channels": Subcommand(
        "add, list, test, pair or remove chat platforms", "bargein.cli.channels"
    ),
    "backup": Subcommand("back up all data, also while it is in use", "bargein.cli.backups"),
    "restore": Subcommand("restore a backup", "bargein.cli.backups"),
    "store": Subcommand("copy all sessions from one store to another", "bargein.cli.store_copy"),
    "cluster": Subcommand("the nodes that share a PostgreSQL store", "bargein.cli.cluster"),
    "config": Subcommand("show every setting and where it comes from", "bargein.cli.show_config"),
    "doctor": Subcommand(
        "check what works on this machine and what does not", "bargein.cli.doctor"
    ),
    "demo": Subcommand("a one-minute demonstration of barging in", "bargein.cli.demo"),
    "completion": Subcommand("completion script for bash, zsh or fish", "bargein.cli.completion"),
}


class Parser(argparse.ArgumentParser):
    """Suggests the command or action that an unknown word may have meant."""

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
    # `bargein` alone is `bargein chat`, so its options are accepted here too.
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
    # A default here would overwrite an option given before the command.
    silent = argparse.SUPPRESS
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "-c",
        "--continue",
        dest="go_on",
        action="store_true",
        default=silent,
        help=GO_ON,
    )
    which.add_argument(
        "--resume", type=session_name, metavar="ID", default=silent, help="continue this session"
    )
    parser.add_argument("--all", action="store_true", default=silent, help=ANY_FOLDER)
    parser.add_argument("--share", action="store_true", default=silent, help=SHARE)
    parser.add_argument(
        "--staged", action="store_const", const="on", default=argparse.SUPPRESS, help=STAGED
    )
    parser.add_argument(
        "--plain", action="store_true", default=silent, help="write line by line, draw nothing"
    )
    _add_model(parser)
    _add_mode(parser)


def _add_stop_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--all", action="store_true", help="every turn and all background calls of this user"
    )


def _add_host_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--ready",
        type=_descriptor,
        metavar="FD",
        help="for terminals: the descriptor on which the host reports that it is ready",
    )
    parser.add_argument(
        "--starting",
        type=_descriptor,
        metavar="FD",
        help="for the terminal that starts it: the lock to hold until then",
    )


def _descriptor(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 8):
        raise argparse.ArgumentTypeError(f"{text!r} is not a descriptor")
    return int(text)


def _add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model",
        type=model_name,
        metavar="NAME",
        default=argparse.SUPPRESS,
        help="the model, such as openai:NAME or local",
    )


def _add_mode(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--mode",
        choices=MODES,
        default=argparse.SUPPRESS,
        help="which calls run without asking: plan is read-only, full never asks",
    )


def _add_attach_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "address",
        type=as_written,
        metavar="URL",
        help="the address that the server printed, such as https://HOST/",
    )
    parser.add_argument(
        "--fingerprint",
        type=as_written,
        metavar="SHA256",
        help="the fingerprint of the server's certificate, if no authority has signed it",
    )
    parser.epilog = ATTACH_EXAMPLES
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    which = parser.add_mutually_exclusive_group()
    which.add_argument("-c", "--continue", dest="go_on", action="store_true", help=GO_ON_THERE)
    which.add_argument("--resume", type=session_name, metavar="ID", help="continue this session")
    parser.add_argument(
        "--plain",
        action="store_true",
        default=argparse.SUPPRESS,
        help="write line by line, draw nothing",
    )
    _add_mode(parser)


def _add_run_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "prompt",
        type=as_written,
        nargs="*",
        help="what to do, together with piped input; without it, or with -, standard input alone",
    )
    parser.epilog = RUN_EXAMPLES
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "--session", type=session_name, metavar="NAME", help="continue or start this session"
    )
    parser.add_argument("--json", action="store_true", help="write events as JSON, one per line")
    parser.add_argument(
        "--output-schema",
        type=as_written,
        metavar="FILE",
        help="print one JSON object that fits the JSON Schema in FILE, and nothing else",
    )
    parser.add_argument("--timeout", type=_seconds, metavar="S", help="stop after S seconds")
    parser.add_argument("--yes", action="store_true", help="approve every call that needs approval")
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
    listing = actions.add_parser("list", help="list sessions, newest first (the default)")
    listing.add_argument("--limit", type=_count, default=20, help="how many; default 20")
    show = actions.add_parser("show", help="show one session")
    show.add_argument("session", type=as_written)
    search = actions.add_parser("search", help="find sessions in which these words occur")
    search.add_argument("words", type=as_written, nargs="+")
    export = actions.add_parser("export", help="write one session to standard output")
    export.add_argument("session", type=as_written)
    export.add_argument("--format", choices=("markdown", "json"), default="markdown")
    remove = actions.add_parser("rm", help="delete sessions permanently")
    remove.add_argument("session", type=as_written, nargs="+")


def _add_backup_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "destination", type=as_written, metavar="DEST", help="a new directory for the backup"
    )
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = """\
Copies everything in the data directory as of one moment: sessions, and the server's tokens, owners
and audit log. A server may run meanwhile. The copy is checked, and DEST appears when it is
complete.

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
        help="replace existing data, which is moved into a folder beside it",
    )
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = """\
The backup is checked first, and nothing is deleted. Stop the server before: nothing may use the
data directory meanwhile.

examples:
  bargein restore /mnt/backups/bargein-monday
  bargein restore --replace /mnt/backups/bargein-monday
  BARGEIN_HOME=/tmp/look bargein restore /mnt/backups/bargein-monday     beside the data in use
"""


def _add_store_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    copy = actions.add_parser(
        "copy",
        help="copy all sessions",
        description="Copies all sessions from one store into another, and compares the two.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="""\
Nothing may use either store meanwhile. Run an interrupted copy again to continue it.

examples:
  bargein store copy ~/.local/share/bargein/sessions.sqlite3 postgresql://bargein@db/bargein
  bargein store copy postgresql://bargein@db/bargein sqlite:///copy.sqlite3
""",
    )
    copy.add_argument("origin", type=as_written, metavar="FROM", help="a file or postgresql://...")
    copy.add_argument("goal", type=as_written, metavar="TO", help="a file or postgresql://...")


def _add_cluster_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    actions.add_parser("status", help="each node, whether it is alive, and what it has at work")


def _add_completion_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=("bash", "zsh", "fish"))
    parser.epilog = (
        'bash: eval "$(bargein completion bash)" in ~/.bashrc; zsh: the same in ~/.zshrc; '
        "fish: bargein completion fish > ~/.config/fish/completions/bargein.fish"
    )


def _add_demo_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--fast", action="store_true", help="skip the pauses for reading")


def _add_config_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--revoke", type=as_written, metavar="ID", help="revoke the grant with this id"
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION")
    trust = actions.add_parser(
        "trust",
        help="approve what this project's files ask for",
        description="Shows what this project's files ask for beyond tighter settings, and asks you "
        "whether to use it. Your answer holds until any of it changes.",
    )
    which = trust.add_mutually_exclusive_group()
    which.add_argument("--list", action="store_true", help="list your answers for all projects")
    which.add_argument(
        "--revoke",
        dest="revoke_trust",
        type=as_written,
        metavar="ID",
        help="forget an answer, by its id in the list",
    )


class _TakesCommand(Parser):
    """Says where `--` belongs, if the command that it is given has options of its own."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        given, others = super().parse_known_args(args, namespace)
        if others and getattr(given, "words", None):
            name, command = given.name, given.words[0]
            self.error(
                f"{others[0]} is not an option of this command; put -- before a command that has "
                f"options: {self.prog} {name} -- {command} {others[0]} ..."
            )
        return given, others


def _add_mcp_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(
        dest="action", metavar="ACTION", required=True, parser_class=_TakesCommand
    )
    adding = actions.add_parser("add", help="add a server to your own file")
    adding.add_argument("name", type=as_written)
    adding.add_argument("--url", type=as_written, default="", help="a server over HTTP")
    adding.add_argument(
        "--header",
        type=as_written,
        action="append",
        metavar="'Name: value'",
        help="goes with each request; ${VAR} stands for a variable",
    )
    adding.add_argument(
        "--bearer-token-env-var",
        type=as_written,
        default="",
        metavar="VAR",
        help="the variable that has the bearer token",
    )
    adding.add_argument(
        "--env",
        type=as_written,
        action="append",
        metavar="NAME=VALUE",
        help="a variable for the server; ${VAR} stands for one of yours",
    )
    adding.add_argument("--replace", action="store_true", help="replace a server of the same name")
    adding.add_argument(
        "words",
        type=as_written,
        nargs="*",
        metavar="COMMAND",
        help="the command that starts it, after -- if it has options",
    )
    adding.formatter_class = argparse.RawDescriptionHelpFormatter
    adding.epilog = """\
examples:
  bargein mcp add time uvx mcp-server-time
  bargein mcp add files -- npx -y @modelcontextprotocol/server-filesystem .
  bargein mcp add issues --url https://mcp.example.com/mcp --bearer-token-env-var ISSUES_TOKEN
"""
    actions.add_parser("list", help="list all servers, and the file that names each")
    testing = actions.add_parser("test", help="start servers and list their tools; calls no tool")
    testing.add_argument("name", type=as_written, nargs="?", default="")
    removing = actions.add_parser("remove", help="remove a server from your own file")
    removing.add_argument("name", type=as_written)
    signing_in = actions.add_parser("login", help="sign in to a server, in a browser")
    signing_in.add_argument("name", type=as_written)
    signing_in.add_argument(
        "--no-browser",
        dest="browser",
        action="store_false",
        help="only print the address to open",
    )
    signing_out = actions.add_parser("logout", help="forget the token of a server")
    signing_out.add_argument("name", type=as_written)
    serving = actions.add_parser(
        "serve",
        help="offer the agent as a tool to an MCP client, over standard input and output",
        description="An MCP client starts this in the folder in which the agent is to work.",
    )
    _add_model(serving)
    _add_mode(serving)


_ARGUMENTS: dict[str, Callable[[argparse.ArgumentParser], None]] = {
    "chat": _add_chat_arguments,
    "host": _add_host_arguments,
    "stop": _add_stop_arguments,
    "attach": _add_attach_arguments,
    "doctor": _add_model,
    "run": _add_run_arguments,
    "serve": add_serve_arguments,
    "token": add_token_arguments,
    "mcp": _add_mcp_arguments,
    "channels": add_channels_arguments,
    "sessions": _add_sessions_arguments,
    "backup": _add_backup_arguments,
    "restore": _add_restore_arguments,
    "store": _add_store_arguments,
    "cluster": _add_cluster_arguments,
    "completion": _add_completion_arguments,
    "demo": _add_demo_arguments,
    "config": _add_config_arguments,
}
