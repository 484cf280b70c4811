"""`bargein serve`: the HTTP API and the web page.

Listens on this machine only, unless the operator names another address, and refuses to listen there
while there are no tokens. Without tokens the only principal is the operator, with a token that each
start makes anew: it is in the printed address, and, for the user's own programs, in a file in the
data directory that only this user can read. The file has no token if the agent's commands could
read it too. With tokens there is no start token.

The tools of this machine (terminal, Python, files) are for one principal. With more than one each
has a folder and a sandbox of its own (see `people`), because one principal's shell could read
another's data. `--let-everyone-run-commands-on-this-machine` lets all of them act as its user.
"""

import argparse
import logging
import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, AsyncExitStack, contextmanager
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio.lowlevel
import msgspec
from anyio import to_thread

from bargein.cancel import arm_quit_watchdog, disarm_quit_watchdog
from bargein.cancel._loops import call_if_open, loop_caller
from bargein.cli.default_agent import agent_of, default_agent
from bargein.cli.event_loop import STOPPED, run_in_loop
from bargein.cli.granted import project_grants
from bargein.cli.hosting import make_room
from bargein.cli.people import agent_for_person, closed_in, describe, make_folder, place_of
from bargein.cli.run import Milestones, Notices
from bargein.cli.signals import heard
from bargein.contracts.message import QuestionPolicy
from bargein.contracts.place import SessionPlace
from bargein.errors import UserError
from bargein.runtime.agent import Agent
from bargein.runtime.config import Config
from bargein.runtime.data_directory import (
    RUNNING_SERVER_FILE,
    RunningServer,
    make_data_directory,
    own_data_directory,
    shown_address,
    token_in_file,
)
from bargein.runtime.engine import Engine

if TYPE_CHECKING:
    from starlette.routing import BaseRoute

    from bargein.runtime.placed_agent import AgentOf
    from bargein.server.access import Access
    from bargein.server.gateway import Gateway, Settings
    from bargein.server.gateway_tables import GatewayTables
    from bargein.server.retention import Retention

from typing import TYPE_CHECKING

from bargein.cancel import CancelSource, run_thread
from bargein.session.broadcast import Observe

if TYPE_CHECKING:
    from bargein.server.metrics import Metrics
    from bargein.server.telemetry import Traces

_log = logging.getLogger("bargein.server")


def main(given: argparse.Namespace, config: Config) -> int:
    if any(find_spec(name) is None for name in ("uvicorn", "starlette")):
        raise UserError("the server is not installed; run  pip install 'bargein[server]'")
    return run_in_loop(_serve, given, config)


class Admission(msgspec.Struct, frozen=True):
    """Whom the server admits, and what it offers. `start_token` is set if there are no other
    tokens, `sole` if the tools of this machine are on because there is only this principal.
    `several`: each principal has a folder and a sandbox of its own instead of the machine."""

    start_token: str | None
    host_tools: bool
    sole: str | None
    several: bool = False


def admission(given: argparse.Namespace, principals: set[str]) -> Admission:
    """Decides whom to admit, from the principals with a token and the operator's flags."""
    from bargein.server.access import OPERATOR, new_start_token
    from bargein.server.running import is_loopback

    if not principals and not is_loopback(given.host):
        raise UserError(
            f"{given.host} can be reached from other machines, and there are no tokens, so anybody "
            "could use this one. Make a token first: bargein token add NAME"
        )
    start_token = None if principals else new_start_token()
    one = len(principals) <= 1
    host_tools = given.scripted is None and (one or given.host_tools_for_all)
    sole = next(iter(principals), OPERATOR) if host_tools and not given.host_tools_for_all else None
    several = given.scripted is None and not host_tools
    return Admission(start_token, host_tools, sole, several)


async def _serve(given: argparse.Namespace, config: Config) -> int:
    from bargein.cli.backups import DATABASES
    from bargein.cli.channels import ServedChannels
    from bargein.runtime.backup import keep_copy_before_upgrade
    from bargein.server.access import Access
    from bargein.server.door import door
    from bargein.server.gateway import Gateway
    from bargein.server.gateway_tables import open_tables
    from bargein.server.guests import Guests, guest_tokens
    from bargein.server.limits import GatewayLimits
    from bargein.server.logs import log_to
    from bargein.server.metrics import Metrics
    from bargein.server.running import allow_many_files, collect_seldom, give_memory_back

    make_data_directory(config.home)
    await to_thread.run_sync(make_room, config.home)
    keep_copy_before_upgrade(config.home, _log.info, DATABASES)
    allow_many_files()
    collect_seldom()
    give_memory_back()
    replies_s = config.number("retention.replies_days") * 86400.0
    limits = GatewayLimits(drain_s=given.drain, replies_kept_s=replies_s)
    served = ServedChannels(config)
    async with AsyncExitStack() as stack:
        db = await open_tables(config.home, config.store_address)
        stack.push_async_callback(db.aclose)
        principals = _principals(db, but=guest_tokens(config.home))
        admitted = admission(given, principals)
        listening = _listen(given, config.home)
        stack.callback(listening.close)
        metrics = Metrics()
        access = Access(db, start_token=admitted.start_token)
        engine = _engine(given, config, admitted, access, observe_with(metrics, config, stack))
        log_to(sys.stderr)
        await stack.enter_async_context(engine)
        settings = _settings(given, config, admitted, engine.model_name)
        if engine.agent_sees_data:
            access.fix_approvers()
        gateway = Gateway(
            engine.core,
            db,
            access,
            limits=limits,
            settings=settings,
            metrics=metrics,
            opened_for=engine.opened_for,
            kill_stopping=engine.hurry,
            mcp=engine,
        )
        gateway.guests = Guests(gateway, config.home, address=config.text("share.address"))
        begin_retention(engine, gateway, config)
        address = _address(given.host, listening)
        seen = engine.agent_sees_data
        words = await _warnings(engine, config, admitted, principals=len(principals))
        announced = _announced(config.home, address, admitted, words, private=not seen)
        sockets = [listening, stack.enter_context(door(config.home))]
        async with served.running(engine, gateway):
            await _until_left(gateway, sockets, announced, served.routes())
        _log.info("nothing is served any more; what still runs is stopped")
        arm_quit_watchdog(limits.quit_s)
    disarm_quit_watchdog()
    return 0


async def _warnings(
    engine: Engine[Any], config: Config, admitted: Admission, *, principals: int
) -> list[str]:
    """Returns what somebody who starts a server should know about who may do what there."""
    words = [NEEDS_TOKEN] if principals else []
    if admitted.several:
        report = await engine.sandbox_for(closed_in(config))
        words = [NEEDS_TOKEN, describe(report, principals)]
    return [*words, SEEN_BY_AGENT] if engine.agent_sees_data else words


def _engine(
    given: argparse.Namespace,
    config: Config,
    admitted: Admission,
    access: "Access",
    observe: Observe,
) -> Engine[Any]:
    def own_place(session: str) -> SessionPlace | None:
        return place_of(config.home, owner_of_session(access, session))

    # The operator's terminals work where they stand, if the tools of this machine are on.
    agent_in: AgentOf | None = partial(agent_of, config) if admitted.host_tools else None
    if admitted.several:
        make_folder(config.home)
        agent_in = partial(agent_for_person, config)
    return Engine(
        agent_for(given, config, admitted),
        config=config,
        on_notice=(Milestones if sys.stderr.isatty() else Notices)(_log.info),
        observe=observe,
        deletes_old_sessions=False,
        grants=project_grants(config),
        principal_of=partial(owner_of_session, access),
        agent_of=agent_in,
        place_of=own_place if admitted.several else None,
    )


def _address(host: str, listening: socket.socket) -> str:
    port: int = listening.getsockname()[1]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/"


def _retention(config: Config) -> "Retention":
    from bargein.server.retention import Retention

    return Retention(
        sessions_s=config.seconds_of_days("retention.sessions_days"),
        audit_s=config.seconds_of_days("retention.audit_days"),
        traces_s=config.seconds_of_days("retention.traces_days"),
    )


def begin_retention(engine: Engine, gateway: "Gateway", config: Config) -> None:
    """Deletes what is kept for longer than the settings say, now and then."""
    from bargein.server.retention import Retention, apply
    from bargein.session.retention import repeat

    retention = _retention(config)
    if retention != Retention():
        engine.core.spawn(partial(repeat, partial(apply, gateway, retention)))


async def _until_left(
    gateway: "Gateway",
    listening: list[socket.socket],
    announced: AbstractContextManager[None],
    more_routes: "list[BaseRoute]",
) -> None:
    """Serves until a signal says to leave. `announced` shows the address once signals are handled.

    Before that a Ctrl-C ends the start, and afterwards the shutdown; every Ctrl-C reaches exactly
    one of these handlers.
    """
    from bargein.server.app import build_app
    from bargein.server.running import GatewayServer

    server = GatewayServer(gateway, build_app(gateway, more_routes=more_routes))
    leave = partial(call_if_open, loop_caller(), server.leave)

    def interrupt(presses: int) -> None:
        if presses > 2:
            os._exit(STOPPED)
        leave()

    with heard(on_interrupt=interrupt, on_leave=lambda number: leave()):
        # A Ctrl-C from before is obeyed here, and not half-way through the announcement.
        await anyio.lowlevel.checkpoint()
        with announced:
            await server.run_until_left(listening)


def _listen(given: argparse.Namespace, home: Path) -> socket.socket:
    """Listens on the port. If a server that owns our data has it, raises an error that says so,
    because another port would not help."""
    from bargein.server.running import listen

    try:
        return listen(given.host, given.port)
    except UserError:
        with own_data_directory(home):
            raise


def _principals(db: "GatewayTables", *, but: frozenset[str]) -> set[str]:
    """Returns who has a token, without the guests of shared chats: their owner let them in."""
    now = time.time()
    return {row.principal for row in db.tokens() if row.is_valid(now) and row.id not in but}


def _settings(
    given: argparse.Namespace, config: Config, admitted: Admission, model: str
) -> "Settings":
    from bargein.server.gateway import Settings

    return Settings(
        names=tuple(given.name),
        origins=tuple(given.origin),
        model=model,
        workspace=str(Path.cwd()) if admitted.host_tools else "",
        host_tools=admitted.host_tools,
        places=admitted.host_tools,
        sole_principal=admitted.sole,
        openai_questions=QuestionPolicy(config.text("openai_questions")),
        trusted_proxies=tuple(given.trusted_proxy),
        proxy_header=given.proxy_header,
        node_address=config.text("cluster.address"),
    )


def owner_of_session(access: "Access", session: str) -> str:
    """Returns whom a session belongs to; a sub-agent's is its root's."""
    owned = access.owned(session.partition("/")[0])
    return owned.owner if owned is not None else ""


def agent_for(given: argparse.Namespace, config: Config, admitted: Admission) -> Agent:
    """Returns the configured agent, without the tools of this machine if they are off."""
    if given.scripted is not None:
        from bargein.models.scripted import ScriptedModel

        return Agent(model=ScriptedModel.from_file(Path(given.scripted)))
    agent = default_agent(config)
    if admitted.host_tools:
        return agent
    own = config.text("instructions")
    return replace(
        agent,
        workspace=None,
        mcp=(),
        instructions="\n\n".join(filter(None, [INSTRUCTIONS, own])),
    )


INSTRUCTIONS = """\
You help people through a server. You have no tools of its machine. The person may interrupt you at
any moment: when you are told that something was stopped, believe it."""


SEEN_BY_AGENT = (
    "Commands of the agent can read the data directory here, so the token of this start is written "
    "nowhere else, and tokens made from now on cannot approve calls; bargein doctor says why"
)
NEEDS_TOKEN = "It asks for a token: one that you have, or a new one by  bargein token add NAME"
TOKEN_UNSEEN = (
    "Its token is shown in a terminal only; start it in one, or make a token before the start by  "
    "bargein token add NAME"
)


@contextmanager
def _announced(
    home: Path, address: str, admitted: Admission, words: list[str], *, private: bool
) -> Iterator[None]:
    """Announces the address and `words` in the terminal, and in a file for the user's own programs.
    `private`: the agent cannot read that file."""
    path = home / RUNNING_SERVER_FILE
    token = admitted.start_token
    shown, how = shown_address(address, token), []
    if token is not None and shown == address:
        how = [token_in_file(home) if private else TOKEN_UNSEEN]
    written = token if private else None
    content = msgspec.json.encode(RunningServer(address, written, os.getpid(), admitted.sole))
    try:
        path.unlink(missing_ok=True)
        with open(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
            file.write(content)
    except OSError as error:
        raise UserError(
            f"{path} cannot be written: {error.strerror}; remove it, or set BARGEIN_HOME to "
            "another directory"
        ) from error
    print("\n".join([f"Bargein is at {shown}", *how, *words]), file=sys.stderr, flush=True)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


TRACES_TO = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
FLUSH_S = 2.0


def observe_with(metrics: "Metrics", config: Config, stack: AsyncExitStack) -> Observe:
    """Returns an observer for an engine: it always counts and logs failures, and sends traces if
    OpenTelemetry's variables say where."""
    from bargein.server.observing import Failures, Observers

    observers = [metrics.observe, Failures().observe]
    traces = _traces(config, stack)
    if traces is not None:
        observers.append(traces.observe)
    return Observers(*observers)


def _traces(config: Config, stack: AsyncExitStack) -> "Traces | None":
    if not any(config.environment.get(name) for name in TRACES_TO):
        return None
    if find_spec("opentelemetry") is None:
        raise UserError(
            f"{TRACES_TO[0]} is set, but traces are not installed; run  "
            "pip install 'bargein[telemetry]', or unset it"
        )
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    from bargein.server.telemetry import Traces

    traces = Traces(OTLPSpanExporter())

    async def close() -> None:
        with CancelSource("traces") as source:
            await run_thread(
                traces.close, FLUSH_S, token=source.token, grace_s=FLUSH_S, name="traces"
            )

    stack.push_async_callback(close)
    return traces
