"""An engine that another process runs, for the terminal: the owner of the data directory, or a
server elsewhere.

Nothing that runs there ends with this terminal. What a terminal shows beside the events (whether a
turn runs, what waits, the permission mode) is asked for when an event says that it may have
changed, and is here before that event is shown.
"""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, aclosing, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Self

from bargein.client import Client, NotFound, Session
from bargein.client.connection import ServerConnection
from bargein.client.wire import Me, SessionSummary
from bargein.contracts.event import Recorded, TextCheckpoint
from bargein.contracts.live import Stopping
from bargein.contracts.model import ToolSchema
from bargein.contracts.permission import PermissionMode
from bargein.errors import BargeinError, UserError
from bargein.session.broadcast import Watched
from bargein.session.state import SessionState

if TYPE_CHECKING:
    from bargein.mcp.prompts import ListedPrompt
    from bargein.mcp.servers import ServerStatus
    from bargein.process import Containment

PATIENCE_S = 3600.0
LOST = "the connection is lost; trying again"
BACK = "connected again"


class AttachedEngine:
    """`address`, `token` and `fingerprint` as of `Client`; `where` is told to the user. `on_notice`
    hears of lost connections."""

    def __init__(
        self,
        address: str,
        *,
        where: str,
        token: str | None = None,
        fingerprint: str | None = None,
        on_notice: Callable[[str], object] | None = None,
    ) -> None:
        self.attached_to = where
        self._on_notice = on_notice or (lambda words: None)
        self._client = Client(
            address,
            token=token,
            fingerprint=fingerprint,
            patience_s=PATIENCE_S,
            on_connected=self._connected,
        )
        self._stack = AsyncExitStack()
        self._me: Me | None = None
        self._sessions: dict[str, AttachedSession] = {}
        self._containment: Containment | None = None

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._client)
            self._me = await self._client.me()
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        return await self._stack.__aexit__(kind, error, trace)

    def _connected(self, is_connected: bool) -> None:
        if self._me is not None:
            self._on_notice(BACK if is_connected else LOST)

    # Sessions

    async def session(self, session_id: str) -> "AttachedSession":
        """The session of this name; a new one, if there is none. Only an admin's has the name that
        was asked for: for others the server chooses it."""
        assert self._me is not None
        try:
            found = await self._client.session(session_id)
        except NotFound:
            name = session_id if self._me.admin else None
            found = await self._client.new_session(session_id=name)
        made = AttachedSession(self._client.connection, found.id)
        await made.open()
        self._sessions[found.id] = made
        return made

    async def sessions(self, *, limit: int = 100) -> Sequence[SessionSummary]:
        return [each for each in await self._client.sessions(limit=limit) if each.last_seq]

    def state(self, session_id: str) -> SessionState | None:
        known = self._sessions.get(session_id)
        return known.latest if known is not None else None

    def mode(self, session_id: str) -> PermissionMode | None:
        known = self._sessions.get(session_id)
        return known.latest_mode if known is not None else None

    def in_background(self, *, but: str) -> list[str]:
        return []

    # The model and its tools

    @property
    def model_name(self) -> str:
        return self._me.model if self._me is not None else ""

    @property
    def model_why(self) -> str:
        return f"chosen by {self.attached_to}"

    @property
    def workspace(self) -> str:
        """The folder that the agent works in there; empty if it has none, or will not say."""
        return self._me.workspace if self._me is not None else ""

    def use_model(self, name: str) -> None:
        raise UserError(f"{self.attached_to} chooses the model; it uses {self.model_name}")

    async def warm_up(self) -> None:
        """The server sees to its model itself."""

    @property
    def tools(self) -> tuple[ToolSchema, ...]:
        return ()

    @property
    def takes_tools(self) -> bool:
        return True

    def mcp_status(self) -> "tuple[ServerStatus, ...]":
        raise UserError(f"{self.attached_to} runs the MCP servers, and does not show them here")

    async def mcp_prompts(self) -> "tuple[ListedPrompt, ...]":
        return ()

    async def mcp_prompt(self, name: str, words: str = "") -> str:
        raise UserError(f"{self.attached_to} runs the MCP servers, and does not show them here")

    # Processes

    @property
    def containment(self) -> "Containment | None":
        return None

    async def users_containment(self) -> "Containment | None":
        """The user's own commands run where the user is."""
        if self._containment is None:
            from bargein.process import open_containment

            opened = await open_containment()
            self._containment = await self._stack.enter_async_context(opened)
        return self._containment

    async def hurry(self) -> None:
        raise UserError(f"{self.attached_to} is stopping it already; it has its own bounds")


class AttachedSession(Session):
    """A session over the wire that remembers its state as of the last event that it has shown."""

    def __init__(self, connection: ServerConnection, session_id: str) -> None:
        super().__init__(connection, session_id)
        self.latest = SessionState()
        self._usual_mode = PermissionMode.ASK

    async def open(self) -> None:
        self.latest = await self.state()
        self._usual_mode = await self.mode()

    @property
    def latest_mode(self) -> PermissionMode:
        return self.latest.permission or self._usual_mode

    async def watch_many(self, *, after: int | None = None) -> AsyncGenerator[list[Watched], None]:
        async with aclosing(super().watch_many(after=after)) as batches:
            async for batch in batches:
                if any(map(_changes_state, batch)):
                    await self._refresh()
                yield batch

    async def pause(self) -> None:
        await super().pause()
        await self._refresh()

    async def resume(self) -> None:
        await super().resume()
        await self._refresh()

    async def _refresh(self) -> None:
        # What it cannot say is said by what comes next: the end of the watch, or of the call.
        with suppress(BargeinError):
            self.latest = await self.state()


def _changes_state(event: Watched) -> bool:
    """Pieces of text come often, and change nothing but the text."""
    if isinstance(event, Recorded):
        return not isinstance(event.event, TextCheckpoint)
    return isinstance(event, Stopping)
