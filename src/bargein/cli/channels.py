"""`bargein channels`: adds, lists, tests, pairs and removes chat platforms; and runs the configured
ones beside the server."""

import argparse
import getpass
import logging
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING

import anyio

from bargein.channels.access import CODE_S, ChannelAccess
from bargein.channels.configured import (
    KINDS,
    ChannelsFile,
    ConfiguredChannel,
    PlatformKind,
    channel_of,
)
from bargein.channels.contract import Channel, ChatKind
from bargein.channels.rows import ChannelHealth, Ledger
from bargein.channels.rows_sqlite import SqliteRows
from bargein.cli.event_loop import run_in_loop
from bargein.errors import UserError
from bargein.runtime.config import Config, user_file
from bargein.runtime.data_directory import make_data_directory, running_server

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import BaseRoute

    from bargein.channels.hub import ChannelHub
    from bargein.runtime.engine import Engine
    from bargein.server.gateway import Gateway
    from bargein.server.shapes import ChannelView

_log = logging.getLogger("bargein.channels")

CHECK_S = 30.0
HOOK_BYTES_MAX = 1 << 20
HOOK_S = 30.0


def main(given: argparse.Namespace, config: Config) -> int:
    return run_in_loop(act, given, config)


async def act(given: argparse.Namespace, config: Config) -> int:
    file = channels_file(config)
    if given.action == "add":
        return _add(given, config, file)
    if given.action == "test":
        return await _test(given, config, file)
    make_data_directory(config.home)
    rows = SqliteRows.of_home(config.home)
    try:
        if given.action == "pair":
            return await _pair(given, file, rows)
        if given.action == "remove":
            return await _remove(given, config, file, rows)
        return await _list(config, file, rows)
    finally:
        rows.close()


def channels_file(config: Config) -> ChannelsFile:
    return ChannelsFile(user_file(config.environment).parent)


def _add(given: argparse.Namespace, config: Config, file: ChannelsFile) -> int:
    options = {}
    for each in given.options:
        key, found, value = each.partition("=")
        if not found:
            raise UserError(
                f"{each!r} is not an option; write NAME=VALUE. {given.kind} has {_options(given)}"
            )
        options[key] = value
    kind = KINDS[given.kind]
    spec = {"kind": kind.name, **options, **_asked(kind, options)}
    channel = channel_of("the command line", given.name, spec)
    file.add(channel, replace=given.replace)
    print(f"added {given.name} to {file.path}", file=sys.stderr)
    print(f"try it with  bargein channels test {given.name}", file=sys.stderr)
    _tell_server(config)
    return 0


def _options(given: argparse.Namespace) -> str:
    return ", ".join(option.name for option in KINDS[given.kind].options)


def _asked(kind: PlatformKind, given: dict[str, str]) -> dict[str, str]:
    """Asks for what is missing, if somebody is there to answer. A secret is not shown, and stands
    in no history of a shell."""
    asked = {}
    for option in kind.options:
        if option.required and option.name not in given and sys.stdin.isatty():
            read = getpass.getpass if option.secret else input
            asked[option.name] = read(f"{option.name} ({option.help}): ").strip()
    return asked


def _tell_server(config: Config) -> None:
    if running_server(config.home) is not None:
        print("restart the running server, so that it takes effect", file=sys.stderr)


async def _remove(
    given: argparse.Namespace, config: Config, file: ChannelsFile, rows: SqliteRows
) -> int:
    """The channel goes, and with it who was paired and what was heard: another bot of this name
    begins anew, and closed."""
    file.remove(given.name)
    ledger = Ledger(rows, given.name)
    pairings = await ledger.pairings()
    await ledger.forget_all()
    ended = f", and {len(pairings)} pairings ended" if pairings else ""
    print(f"removed {given.name} from {file.path}{ended}", file=sys.stderr)
    _tell_server(config)
    return 0


async def _list(config: Config, file: ChannelsFile, rows: SqliteRows) -> int:
    channels = file.read()
    serves = running_server(config.home) is not None
    for channel in channels:
        ledger = Ledger(rows, channel.name)
        health = await ledger.health()
        state = "does not run"
        if serves:
            state = "runs" if health.running else "does not reach its platform"
        print(f"{channel.name}  {channel.kind.name}  {state}")
        for pairing in await ledger.pairings():
            where = "in private" if pairing.kind is ChatKind.PRIVATE else f"in group {pairing.chat}"
            print(f"  paired: {pairing.name or '-'} ({pairing.person}) {where}")
        if health.error:
            print(f"  last error, {_time(health.at)}: {health.error}")
    if not channels:
        hint = "no channels; add one with  bargein channels add NAME KIND"
        print(hint, file=sys.stderr)
    elif not serves:
        print("no server runs here; start one with  bargein serve", file=sys.stderr)
    return 0


def _time(at: float) -> str:
    return datetime.fromtimestamp(at).astimezone().strftime("%Y-%m-%d %H:%M:%S")


async def _test(given: argparse.Namespace, config: Config, file: ChannelsFile) -> int:
    """Says who each bot is. Reads and sends nothing, so it may be run beside the server."""
    if given.walk:
        return await _walk(given, config, file)
    failed = 0
    for channel in _chosen(given.name, file):
        opened = channel.open(config.environment, config.home)
        try:
            with anyio.fail_after(CHECK_S):
                print(f"{channel.name}  works: {await opened.check()}")
        except Exception as error:  # boundary: a platform's, shown to the operator
            failed += 1
            print(f"{channel.name}  failed: {str(error) or type(error).__name__}")
        finally:
            await opened.aclose()
    return 1 if failed else 0


async def _walk(given: argparse.Namespace, config: Config, file: ChannelsFile) -> int:
    from bargein.cli.channels_walk import walk

    if not given.name:
        raise UserError("--walk needs the name of one channel:  bargein channels test NAME --walk")
    (channel,) = _chosen(given.name, file)
    if running_server(config.home) is not None:
        raise UserError("a server runs here and reads this bot; end it for the walk")
    return await walk(channel.open(config.environment, config.home))


def _chosen(name: str, file: ChannelsFile) -> list[ConfiguredChannel]:
    channels = file.read()
    found = [each for each in channels if name in ("", each.name)]
    if not found:
        known = ", ".join(each.name for each in channels) or "none is configured"
        raise UserError(f"there is no channel {name}; there is: {known}" if name else "no channels")
    return found


async def _pair(given: argparse.Namespace, file: ChannelsFile, rows: SqliteRows) -> int:
    _chosen(given.name, file)
    access = ChannelAccess(Ledger(rows, given.name))
    if given.revoke:
        count = await access.revoke(given.revoke)
        if not count:
            raise UserError(f"{given.revoke} is not paired; `bargein channels list` has who is")
        print(f"ended {count} pairings of {given.revoke}", file=sys.stderr)
        return 0
    kind = ChatKind.GROUP if given.group else ChatKind.PRIVATE
    print(await access.make_code(kind), flush=True)
    where = "in the group, to the bot" if given.group else "to the bot, in private"
    print(
        f"A person who sends this {where} within {CODE_S / 60:.0f} minutes may speak to it there. "
        "It works once.",
        file=sys.stderr,
    )
    return 0


# Beside the server


class ServedChannels:
    """The configured channels of a server. Made before it starts, so that a mistake ends the
    start; `running` runs them."""

    def __init__(self, config: Config) -> None:
        opened = channels_file(config).read()
        _check_identities(opened, config)
        self._channels: dict[str, Channel] = {
            each.name: each.open(config.environment, config.home) for each in opened
        }
        self._home = config.home

    @asynccontextmanager
    async def running(self, engine: "Engine", gateway: "Gateway") -> AsyncIterator[None]:
        """The owner of the data directory enters this; so each bot has one reader here."""
        from bargein.channels.hub import ChannelHub

        if not self._channels:
            yield
            return
        async with AsyncExitStack() as stack:
            rows = SqliteRows.of_home(self._home)
            stack.callback(rows.close)
            hub = ChannelHub(engine.core, rows)
            tasks = await stack.enter_async_context(anyio.create_task_group())
            for channel in self._channels.values():
                tasks.start_soon(partial(_keep, hub, channel, Ledger(rows, channel.name)))
            gateway.metrics.add_gauges(partial(_gauges, hub))
            gateway.channels = partial(_views, hub)
            yield
            tasks.cancel_scope.cancel()

    def routes(self) -> "list[BaseRoute]":
        """Where platforms deliver: `/channels/NAME`, for the channels that take requests."""
        from starlette.routing import Route

        from bargein.channels.contract import HookChannel

        hooks = {n: c for n, c in self._channels.items() if isinstance(c, HookChannel)}

        async def deliver(request: "Request") -> "Response":
            from starlette.responses import Response

            hook = hooks.get(request.path_params["name"])
            if hook is None:
                return Response(status_code=404)
            body = bytearray()
            try:
                with anyio.fail_after(HOOK_S):
                    async for part in request.stream():
                        body += part
                        if len(body) > HOOK_BYTES_MAX:
                            return Response(status_code=413)
                    answer = await hook.hook(dict(request.headers), bytes(body))
            except TimeoutError:
                return Response(status_code=408)
            return Response(answer.body, answer.status, media_type=answer.media_type)

        return [Route("/channels/{name}", deliver, methods=["POST"])] if hooks else []


def _check_identities(channels: list[ConfiguredChannel], config: Config) -> None:
    """Two names of variables may hold one token."""
    seen: dict[tuple[str, str], str] = {}
    for each in channels:
        key = each.kind.name, each.identity(config.environment)
        other = seen.setdefault(key, each.name)
        if other != each.name:
            raise UserError(
                f"the channels {other} and {each.name} have the same {each.kind.identity}; a bot "
                "has one reader, so remove one of them"
            )


async def _keep(hub: "ChannelHub", channel: Channel, ledger: Ledger) -> None:
    try:
        await hub.run(channel)
    except Exception as error:  # boundary: a fault in one channel does not end the server
        _log.exception("channel %s ended", channel.name)
        await ledger.keep_health(ChannelHealth(False, f"a fault: {error}", _now()))


def _now() -> float:
    return datetime.now().astimezone().timestamp()


def _views(hub: "ChannelHub") -> "list[ChannelView]":
    from bargein.server.shapes import ChannelView

    return [
        ChannelView(
            name, each.health.running, each.health.error, each.health.at, each.chats, each.unsent
        )
        for name, each in hub.statuses().items()
    ]


def _gauges(hub: "ChannelHub") -> dict[tuple[str, str, str], dict[str, float]]:
    statuses = hub.statuses()
    return {
        ("bargein_channel_up", "Whether a channel reads its platform.", "channel"): {
            name: float(each.health.running) for name, each in statuses.items()
        },
        ("bargein_channel_chats", "Chats in which something goes on.", "channel"): {
            name: float(each.chats) for name, each in statuses.items()
        },
        ("bargein_channel_unsent", "Messages that wait to be sent to a chat.", "channel"): {
            name: float(each.unsent) for name, each in statuses.items()
        },
    }
