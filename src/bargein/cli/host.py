"""`bargein host`: owns the data directory and runs the sessions of this user's terminals.

A terminal starts it (`bargein.cli.hosting`). It has no folder, no terminal and no address:
terminals connect through the door, and give each session its place. When nothing runs and nobody is
connected for `host.linger_s`, it ends. Its log is `host.log` in the data directory.
"""

import argparse
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING

import anyio

from bargein.cancel import arm_quit_watchdog, disarm_quit_watchdog
from bargein.cancel._loops import call_if_open, loop_caller
from bargein.cli.default_agent import agent_of
from bargein.cli.event_loop import run_in_loop
from bargein.cli.hosting import READY, UNFIT, keep_others_waiting, note_unfit
from bargein.cli.run import Milestones
from bargein.cli.serve import begin_retention, observe_with, owner_of_session
from bargein.cli.signals import heard
from bargein.contracts.event import Recorded
from bargein.errors import BargeinError, UserError
from bargein.runtime.config import Config
from bargein.runtime.data_directory import HOST, make_data_directory
from bargein.runtime.engine import Engine
from bargein.session.broadcast import Observe, Watched
from bargein.session.turn import Turn

if TYPE_CHECKING:
    from bargein.server.gateway import Gateway
    from bargein.server.running import GatewayServer

_log = logging.getLogger("bargein.server")


def main(given: argparse.Namespace, config: Config) -> int:
    # Other processes name it in errors by this (`runtime.directory_lock`).
    sys.argv = [HOST]
    telling = Telling(given.ready, given.starting)
    try:
        return run_in_loop(_host, config, telling)
    except BargeinError as error:
        telling.say(str(error).encode())
        raise
    finally:
        telling.close()


class Telling:
    """The pipe to the terminal that started this host, and that terminal's lock.

    The lock keeps other terminals from starting a host meanwhile. The terminal may be gone by now.
    """

    def __init__(self, pipe: int | None, starting: int | None) -> None:
        self._pipe = pipe
        self._descriptors = [each for each in (pipe, starting) if each is not None]
        for descriptor in self._descriptors:
            with suppress(OSError):
                os.set_inheritable(descriptor, False)

    def say(self, words: bytes) -> None:
        if self._pipe is not None and self._descriptors:
            with suppress(OSError):
                os.write(self._pipe, words)
        self.close()

    def close(self) -> None:
        while self._descriptors:
            with suppress(OSError):
                os.close(self._descriptors.pop())


async def _host(config: Config, telling: Telling) -> int:
    from bargein.cli.backups import DATABASES
    from bargein.runtime.backup import keep_copy_before_upgrade
    from bargein.server.access import Access
    from bargein.server.app import build_app
    from bargein.server.door import door
    from bargein.server.gateway import Gateway, Settings
    from bargein.server.gateway_tables import open_tables
    from bargein.server.guests import Guests
    from bargein.server.limits import GatewayLimits
    from bargein.server.logs import log_to
    from bargein.server.metrics import Metrics
    from bargein.server.running import GatewayServer, allow_many_files, collect_seldom

    make_data_directory(config.home)
    log_to(sys.stderr)
    allow_many_files()
    limits = GatewayLimits(replies_kept_s=config.number("retention.replies_days") * 86400.0)
    async with AsyncExitStack() as stack:
        metrics = Metrics()
        # The engine takes the directory's lock, so it comes before anything that changes files.
        watch = IdleWatch(observe_with(metrics, config, stack), config.number("host.linger_s"))
        engine = Engine(
            _without_place,
            config=config,
            on_notice=Milestones(_log.info),
            observe=watch.observe,
            deletes_old_sessions=False,
            principal_of=lambda session: owner_of_session(access, session),
            agent_of=partial(agent_of, config),
        )
        keep_copy_before_upgrade(config.home, _log.info, DATABASES)
        db = await open_tables(config.home, config.store_address)
        stack.push_async_callback(db.aclose)
        access = Access(db)
        await stack.enter_async_context(engine)
        collect_seldom()
        if engine.agent_sees_data:
            note_unfit(config.home)
            telling.say(UNFIT)
            return 0
        gateway = Gateway(
            engine.core,
            db,
            access,
            limits=limits,
            settings=Settings(
                host_tools=True, places=True, node_address=config.text("cluster.address")
            ),
            metrics=metrics,
            opened_for=engine.opened_for,
            kill_stopping=engine.hurry,
        )
        gateway.guests = Guests(gateway, config.home, address=config.text("share.address"))
        begin_retention(engine, gateway, config)
        listening = stack.enter_context(door(config.home))
        server = GatewayServer(
            gateway, build_app(gateway), before_closing=partial(keep_others_waiting, config.home)
        )
        async with anyio.create_task_group() as group:
            gateway.leave_if_idle = partial(watch.leave_if_idle, server)
            gateway.on_streams = watch.look
            watch.gateway = gateway
            group.start_soon(_tell_when_ready, server, telling)
            group.start_soon(watch.leave_when_idle, server)
            with _signals(server):
                await server.run_until_left([listening])
            group.cancel_scope.cancel()
        arm_quit_watchdog(limits.quit_s)
    disarm_quit_watchdog()
    return 0


@contextmanager
def _signals(server: "GatewayServer") -> Iterator[None]:
    leave = partial(call_if_open, loop_caller(), server.leave)
    with heard(on_interrupt=lambda presses: leave(), on_leave=lambda number: leave()):
        yield


async def _tell_when_ready(server: "GatewayServer", telling: Telling) -> None:
    await server.listening.wait()
    telling.say(READY)


async def _without_place(turn: Turn) -> None:
    raise UserError("this session has no folder yet; open it in a terminal with  bargein --resume")


class IdleWatch:
    """Notices when nothing runs and nobody is connected. It stands in front of another observer and
    passes everything on to it."""

    def __init__(self, observe: Observe, linger_s: float) -> None:
        self._observe = observe
        self._linger_s = linger_s
        self._changed = anyio.Event()
        self.gateway: Gateway | None = None

    def observe(self, session: str, shown: Watched) -> None:
        self._observe(session, shown)
        if isinstance(shown, Recorded):
            self.look()

    def look(self) -> None:
        """Call this when something may have changed."""
        self._changed.set()

    def is_idle(self, *, but: int = 0) -> bool:
        """Whether nothing runs and at most `but` connections are open."""
        gateway = self.gateway
        assert gateway is not None
        engine = gateway.engine
        actors = [engine.actor_in_memory(each) for each in engine.in_memory]
        return len(gateway.streams) <= but and not any(
            actor is not None and actor.is_working for actor in actors
        )

    async def leave_when_idle(self, server: "GatewayServer") -> None:
        while True:
            self._changed = changed = anyio.Event()
            idle = self.is_idle()
            # Looks again after a while in any case: a turn counts until a moment after its end.
            with anyio.move_on_after(self._linger_s):
                await changed.wait()
            if idle and not changed.is_set() and self.is_idle():
                _log.info("nothing runs and nobody is connected; leaving")
                server.leave()
                return

    def leave_if_idle(self, server: "GatewayServer", connected: bool) -> bool:
        """Leaves if nothing runs and nobody is connected. `connected`: the caller itself has a
        connection, which does not count."""
        if not self.is_idle(but=1 if connected else 0):
            return False
        server.leave()
        return True
