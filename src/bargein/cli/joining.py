"""Opens the engine for a command: the engine of the data directory's host, or one of its own."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from anyio import to_thread

from bargein.cli.chat.any_engine import AnyEngine
from bargein.cli.default_agent import default_agent
from bargein.cli.granted import project_grants
from bargein.cli.here import place_here
from bargein.cli.hosting import HostStart, may_host, reach_host
from bargein.errors import UserError
from bargein.runtime.config import COMMAND_LINE, Config
from bargein.runtime.data_directory import DOOR_FILE, owner_listens
from bargein.runtime.engine import Engine
from bargein.session.any_session import AnySession

OpenEngine = Callable[[Config, Callable[[str], object]], AbstractAsyncContextManager[AnyEngine]]


@asynccontextmanager
async def hosted_engine(
    config: Config, on_notice: Callable[[str], object], *, begun: HostStart | None = None
) -> AsyncIterator[AnyEngine]:
    """Opens the engine of the host, and starts a host if there is none. Where there can be no host,
    opens an engine in this process. `begun` is a host that is being started."""
    is_hosted = begun is None and owner_listens(config.home)
    if begun is not None:
        is_hosted = await to_thread.run_sync(begun.wait, abandon_on_cancel=True)
    elif not is_hosted and may_host(config):
        is_hosted = await to_thread.run_sync(reach_host, config, abandon_on_cancel=True)
    async with _opened(config, on_notice, is_hosted) as engine:
        yield engine


@asynccontextmanager
async def engine_of_owner(
    config: Config, on_notice: Callable[[str], object]
) -> AsyncIterator[AnyEngine]:
    """Opens the engine of the host or server that owns the data directory; without one, an engine
    in this process."""
    async with _opened(config, on_notice, owner_listens(config.home)) as engine:
        yield engine


@asynccontextmanager
async def _opened(
    config: Config, on_notice: Callable[[str], object], is_hosted: bool
) -> AsyncIterator[AnyEngine]:
    opened: AnyEngine
    if is_hosted:
        from bargein.cli.attached import AttachedEngine

        opened = AttachedEngine(
            f"unix:{config.home / DOOR_FILE}",
            where=f"the server that owns {config.home}",
            on_notice=on_notice,
            host_of=config,
        )
    else:
        opened = Engine(
            default_agent(config), config=config, on_notice=on_notice, grants=project_grants(config)
        )
    async with opened as engine:
        wanted = config.effective.get("model")
        named = wanted is not None and wanted.source == COMMAND_LINE
        if named and is_hosted and not engine.has_places:
            raise UserError(
                f"--model: {engine.attached_to} chooses the model; leave it out to attach to it"
            )
        yield engine


async def note_place(engine: AnyEngine, session: AnySession, config: Config) -> None:
    """Stores the place of a session in an engine of this process. A host has stored it already."""
    if not engine.attached_to and await session.place() is None:
        await session.set_place(place_here(config))
