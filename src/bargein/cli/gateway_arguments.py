"""The arguments of `bargein serve`, `bargein token` and `bargein channels`."""

import argparse

from bargein.cli.names import (
    host_name,
    model_name,
    page_origin,
    proxy_network,
    server_name,
    session_name,
)
from bargein.cli.streams import as_written

PORT = 8484
DAYS_MAX = 36500


def add_serve_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--host",
        type=host_name,
        default="127.0.0.1",
        help="the address to listen on; default 127.0.0.1",
    )
    parser.add_argument("--port", type=_port, default=PORT, help=f"default {PORT}; 0 for any")
    parser.add_argument(
        "--name",
        type=server_name,
        action="append",
        default=[],
        metavar="HOST",
        help="a host name that clients use for it; may be repeated",
    )
    parser.add_argument(
        "--origin",
        type=page_origin,
        action="append",
        default=[],
        metavar="URL",
        help="the origin of a page that may call it; may be repeated",
    )
    parser.add_argument(
        "--trusted-proxy",
        type=proxy_network,
        action="append",
        default=[],
        metavar="ADDRESS",
        help="a proxy, or a network of proxies, whose header about clients counts; may be repeated",
    )
    parser.add_argument(
        "--proxy-header",
        choices=("x-forwarded-for", "forwarded"),
        default="x-forwarded-for",
        help="the header in which trusted proxies name the client; default x-forwarded-for",
    )
    parser.add_argument(
        "--drain",
        type=_drain_s,
        default=20.0,
        metavar="S",
        help="how long turns may go on after SIGTERM; default 20",
    )
    parser.add_argument(
        "--store",
        metavar="ADDRESS",
        default=argparse.SUPPRESS,
        help="where sessions are stored: postgresql://... for many machines",
    )
    parser.add_argument(
        "--let-everyone-run-commands-on-this-machine",
        action="store_true",
        dest="host_tools_for_all",
        help="with several principals: their commands run on this machine, as its user",
    )
    parser.add_argument(
        "--scripted", metavar="FILE", help="play this script instead of a model, without tools"
    )
    parser.add_argument(
        "--model",
        type=model_name,
        metavar="NAME",
        default=argparse.SUPPRESS,
        help="the model, such as openai:NAME or local",
    )


def add_token_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    adding = actions.add_parser("add", help="create a token; its text is shown once")
    adding.add_argument("principal", type=as_written, help="the person or program that uses it")
    adding.add_argument(
        "--days", type=_days, default=90.0, help="days until it expires; default 90"
    )
    adding.add_argument("--read-only", action="store_true", help="may read, but change nothing")
    adding.add_argument("--admin", action="store_true", help="may see and stop every session")
    adding.add_argument(
        "--session",
        type=session_name,
        action="append",
        metavar="ID",
        help="valid for this session only; may be repeated",
    )
    adding.add_argument("--note", type=as_written, default="", help="what it is for")
    actions.add_parser("list", help="list all tokens, without their secrets")
    revoking = actions.add_parser("revoke", help="revoke tokens at once")
    revoking.add_argument("token", type=as_written, nargs="+", metavar="ID")


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port: give a number from 0 to 65535")
    return int(text)


def _days(text: str) -> float:
    try:
        days = float(text)
    except ValueError:
        days = -1
    if not 0 < days <= DAYS_MAX:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a number of days: give more than 0, at most {DAYS_MAX}"
        )
    return days


def _drain_s(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1
    if not 0 <= seconds < 1e9:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds: give 0 or more")
    return seconds


CHANNEL_KINDS = ("matrix", "telegram", "slack", "discord")


def add_channels_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    adding = actions.add_parser("add", help="add a bot that you have made on its platform")
    adding.add_argument("name", type=as_written, help="your name for it, such as home")
    adding.add_argument("kind", choices=CHANNEL_KINDS)
    adding.add_argument(
        "options",
        type=as_written,
        nargs="*",
        metavar="OPTION=VALUE",
        help="what the platform needs; ${VAR} stands for a variable. Asks for what is missing",
    )
    adding.add_argument("--replace", action="store_true", help="replace a channel of the same name")
    adding.formatter_class = argparse.RawDescriptionHelpFormatter
    adding.epilog = """\
examples:
  bargein channels add home telegram                        asks for the token
  bargein channels add work slack 'token=${SLACK_TOKEN}' 'app_token=${SLACK_APP_TOKEN}'
  bargein channels add chat matrix homeserver=https://matrix.org user=@bot:matrix.org
"""
    actions.add_parser("list", help="list channels, their state, and who is paired")
    testing = actions.add_parser("test", help="ask each platform who the bot is; sends nothing")
    testing.add_argument("name", type=as_written, nargs="?", default="")
    testing.add_argument(
        "--walk",
        action="store_true",
        help="test a conversation with the bot step by step, in five minutes",
    )
    pairing = actions.add_parser("pair", help="make a code with which a person pairs with a bot")
    pairing.add_argument("name", type=as_written)
    pairing.add_argument("--group", action="store_true", help="make the code for a group chat")
    pairing.add_argument(
        "--revoke", type=as_written, default="", metavar="PERSON", help="end a person's pairings"
    )
    removing = actions.add_parser("remove", help="remove a channel, and end its pairings")
    removing.add_argument("name", type=as_written)
