"""The terminal's view of an engine in another process: the host of the data directory, or a server
elsewhere.

If that process gives sessions places, each session works in its own folder with its own model; a
new one works in the current folder of this terminal.

The work there does not end with this terminal. The terminal also shows state that no event carries
(whether a turn runs, which messages wait, the permission mode). It asks for that state when an
event may have changed it, and shows the event after it has the answer.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, aclosing, suppress
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import anyio.to_thread
import msgspec

from bargein import __version__
from bargein.cli.here import lent_environment, place_here, whole_model_name
from bargein.cli.hosting import may_host, reach_host, wait_until_gone
from bargein.client import Client, Disconnected, NotFound, Session, Unanswered
from bargein.client.commands import FirstCommand, Resend
from bargein.client.connection import ServerConnection
from bargein.client.wire import (
    HelloFrame,
    Me,
    PlaceReply,
    PromptReply,
    SessionSummary,
    read,
)
from bargein.contracts.event import Recorded, SessionPlaced, TextCheckpoint
from bargein.contracts.guests import Invited, SharedView, Unshared
from bargein.contracts.live import Paused, Stopping
from bargein.contracts.model import ToolSchema
from bargein.contracts.permission import PermissionMode
from bargein.contracts.place import SessionPlace
from bargein.contracts.receipt import Receipt
from bargein.errors import BargeinError, UserError
from bargein.mcp.overview import McpOverview
from bargein.runtime.config import Config
from bargein.runtime.data_directory import DOOR_FILE
from bargein.runtime.directory_lock import owner_of
from bargein.session.broadcast import Watched
from bargein.session.state import SessionState

if TYPE_CHECKING:
    from bargein.process import Containment, SandboxReport

PATIENCE_S = 3600.0
OWN_SENDERS = frozenset({"operator", "user"})
LOST = "the connection is lost; trying again"
BACK = "connected again"
CONNECT_TRIES = 3
GREET_S = 15.0


class AttachedEngine:
    """`address`, `token` and `fingerprint` as for `Client`. `where` names the other process for the
    user. `on_notice` gets a sentence when the connection is lost and when it is back."""

    def __init__(
        self,
        address: str,
        *,
        where: str,
        token: str | None = None,
        fingerprint: str | None = None,
        on_notice: Callable[[str], object] | None = None,
        host_of: Config | None = None,
        invited_to: str = "",
    ) -> None:
        """`host_of`: the address is the door of this data directory; if there is no host, this
        starts one, also after a lost connection. `invited_to`: the session in which this terminal
        is a guest."""
        self.attached_to = where
        self._host_of = host_of
        self._invited_to = invited_to
        self._start = ""
        self._placed: dict[str, SessionPlace] = {}
        self._on_notice = on_notice or (lambda words: None)
        self._client = Client(
            address,
            token=token,
            fingerprint=fingerprint,
            patience_s=PATIENCE_S,
            on_connected=self._connected,
            before_connecting=self._reach if host_of is not None else None,
            says_first=self._lend_again,
        )
        self._stack = AsyncExitStack()
        self._me: Me | None = None
        self._sessions: dict[str, AttachedSession] = {}
        self._containment: Containment | None = None
        self._about = PlaceReply()
        self._current: AttachedSession | None = None

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            if self._host_of is not None:
                await self._connect_to_host(self._host_of)
                stack.push_async_exit(self._client)
            else:
                await stack.enter_async_context(self._client)
            self._me = await self._client.me()
            if self._me.host and self._host_of is not None:
                self.attached_to = f"the host of {self._host_of.home}"
            self._stack = stack.pop_all()
        return self

    async def _connect_to_host(self, config: Config) -> None:
        """Connect to the host. If it is just leaving, or an idle host of another version, start
        the next host."""
        for left in reversed(range(CONNECT_TRIES)):
            await self._reach()
            try:
                with anyio.fail_after(GREET_S):
                    await self._client.__aenter__()
            except Disconnected:
                if not left:
                    raise
                continue
            except TimeoutError:
                owner = owner_of(config.home)
                raise UserError(
                    f"{owner or 'the host'} does not answer at {config.home / DOOR_FILE}; end it "
                    "and try again"
                ) from None
            hello = self._client.connection.hello
            if hello is None or hello.version == __version__:
                return
            await self._replace(hello.version, config)
        raise UserError(f"hosts of other versions keep starting on {config.home}; end them")

    async def _replace(self, version: str, config: Config) -> None:
        """End an idle host of another version; raise if it is at work. If the answer is lost, the
        client has already started the next host."""
        owner = owner_of(config.home)
        try:
            await self._client.connection.ask(
                "leave_host", body={"connected": True}, again=Resend.NEVER
            )
        except (Disconnected, Unanswered):
            pass
        except BargeinError as error:
            raise UserError(
                f"the sessions in {config.home} are run by version {version} ({owner}), and this "
                f"is {__version__}: {error}. This version takes over when that one is idle, or has "
                f"been ended: kill {owner.pid if owner else 'PID'}"
            ) from None
        finally:
            await self._client.__aexit__(None, None, None)
        await anyio.to_thread.run_sync(wait_until_gone, owner)

    async def _reach(self) -> None:
        assert self._host_of is not None
        is_server = self._me is not None and not self._me.host
        if is_server or not may_host(self._host_of):
            # Only wait for it: its operator starts it again.
            return
        if not await anyio.to_thread.run_sync(
            partial(reach_host, self._host_of), abandon_on_cancel=True
        ):
            raise UserError(f"no host can run for {self._host_of.home} here")

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
        """Open the session of this name, or make one. A new session gets the name only if the user
        is an admin there; for others the server chooses one."""
        assert self._me is not None
        try:
            found = await self._client.session(session_id)
        except NotFound:
            name = session_id if self._me.admin else None
            found = await self._client.new_session(session_id=name)
        made = AttachedSession(self._client.connection, found.id)
        await made.open()
        self._sessions[found.id] = made
        self._current = made
        made.on_placed = partial(self._look_at_place, made)
        await self._place(made)
        return made

    def child(self, session_id: str) -> Session:
        return Session(self._client.connection, session_id)

    async def _place(self, session: "AttachedSession", wanted: SessionPlace | None = None) -> None:
        """Lend the session this terminal's environment. A new session also gets its place."""
        params = {"session": session.id}
        if self._host_of is not None and self._me is not None and self._me.places:
            place = wanted or session.latest.place or place_here(self._host_of)
            said = self._lending(session.id, place, self._host_of)
            ask = partial(self._client.connection.ask, said.do, params=said.params, body=said.body)
            self._about = read(PlaceReply, await ask(again=Resend.SAME))
            self._placed[session.id] = place
        else:
            self._about = read(
                PlaceReply, await self._client.connection.ask("get_place", params=params)
            )

    async def _look_at_place(self, session: "AttachedSession") -> None:
        """Ask for the place again: another terminal may have chosen another model."""
        if session is self._current:
            with suppress(BargeinError):
                self._about = read(PlaceReply, await self._ask("get_place"))

    def _lending(self, session_id: str, place: SessionPlace, config: Config) -> FirstCommand:
        body = {
            "workspace": place.workspace,
            "model": place.model,
            # Another terminal may have staged it meanwhile.
            "staged": True if place.staged else None,
            "environment": lent_environment(config),
        }
        return FirstCommand("place_session", {"session": session_id}, body)

    def _lend_again(self, hello: HelloFrame) -> Sequence[FirstCommand]:
        """Return the command that lends the environment again, if another process has taken over.
        That one knows no environment, and knows the place only of sessions that have a log."""
        known, self._start = self._start, hello.start
        session = self._current
        if known in ("", hello.start) or self._host_of is None or session is None:
            return ()
        place = session.latest.place or self._placed.get(session.id)
        return (self._lending(session.id, place, self._host_of),) if place is not None else ()

    @property
    def own_senders(self) -> frozenset[str]:
        """The senders whose messages this terminal's user wrote. Through the door the user is the
        operator, and `user` in sessions that ran without a server."""
        if self._host_of is not None:
            return OWN_SENDERS
        return frozenset({self._me.principal} if self._me is not None else ())

    def workspace_of(self, session: SessionSummary) -> str:
        """The folder of a session in a list."""
        return session.workspace

    async def sessions(self, *, limit: int = 100) -> Sequence[SessionSummary]:
        """List sessions, without those that have no message yet. A guest's session is listed."""
        found = await self._client.sessions(limit=limit)
        return [each for each in found if each.last_seq or each.id == self._invited_to]

    def state(self, session_id: str) -> SessionState | None:
        known = self._sessions.get(session_id)
        return known.latest if known is not None else None

    def mode(self, session_id: str) -> PermissionMode | None:
        known = self._sessions.get(session_id)
        return known.latest_mode if known is not None else None

    def in_background(self, *, but: str) -> list[str]:
        return []

    async def stop_all(self) -> tuple[Receipt, ...]:
        return await self._client.stop_all()

    # Guests

    @property
    def sharing(self) -> "Self | None":
        """None for a server elsewhere: only its own operator shares sessions there."""
        return self if self._host_of is not None else None

    async def invite_guest(self, session_id: str, name: str) -> Invited:
        """Shares a session with one more guest; returns an address that works once."""
        return read(Invited, await self._share("invite_guest", session_id, {"name": name}))

    async def guests(self, session_id: str) -> SharedView:
        return read(SharedView, await self._share("list_guests", session_id))

    async def let_approve(self, session_id: str, name: str, *, approves: bool) -> SharedView:
        body = {"approves": approves}
        return read(SharedView, await self._share("change_guest", session_id, body, guest=name))

    async def unshare(self, session_id: str) -> tuple[str, ...]:
        """End the sharing of a session; return the names of the guests who are out now."""
        return read(Unshared, await self._share("unshare_session", session_id)).guests

    async def _share(
        self, do: str, session_id: str, body: dict[str, Any] | None = None, **params: str
    ) -> bytes:
        return await self._client.connection.ask(
            do, params={"session": session_id, **params}, body=body or {}, again=Resend.SAME
        )

    # The model and its tools

    @property
    def has_places(self) -> bool:
        """Whether that process gives each session a folder of its own."""
        return self._me is not None and self._me.places

    @property
    def model_name(self) -> str:
        return self._about.model or (self._me.model if self._me is not None else "")

    @property
    def context_tokens(self) -> int | None:
        from bargein.models.costs import context_tokens_of

        return context_tokens_of(self.model_name.partition(":")[2])

    @property
    def model_why(self) -> str:
        return self._about.why or f"chosen by {self.attached_to}"

    @property
    def workspace(self) -> str:
        """The folder in which the agent works there; empty if it has none or does not say."""
        return self._about.workspace or (self._me.workspace if self._me is not None else "")

    async def use_model_in(self, session_id: str, name: str) -> None:
        session = self._sessions[session_id]
        if not self.has_places:
            raise UserError(f"{self.attached_to} chooses the model; it uses {self.model_name}")
        place = await session.place() or place_here(self._config)
        model = whole_model_name(name, place.workspace)
        await self._place(session, msgspec.structs.replace(place, model=model))

    @property
    def _config(self) -> Config:
        assert self._host_of is not None
        return self._host_of

    async def warm_up(self) -> None:
        """Load the model of the session's place. A server elsewhere loads its model itself."""
        if self.has_places and self._current is not None:
            await self._ask("warm_up", again=Resend.SAME)

    @property
    def tools(self) -> tuple[ToolSchema, ...]:
        return self._about.tools

    @property
    def takes_tools(self) -> bool:
        return self._about.takes_tools

    async def mcp_overview(self) -> McpOverview:
        if not self.has_places:
            return await self._client.mcp()
        return read(McpOverview, await self._ask("get_mcp"))

    async def mcp_prompt(self, name: str, words: str = "") -> str:
        if not self.has_places:
            return await self._client.mcp_prompt(name, words)
        body = {"name": name, "words": words}
        return read(PromptReply, await self._ask("get_prompt", body, again=Resend.SAME)).text

    async def _ask(
        self, do: str, body: dict[str, str] | None = None, again: Resend = Resend.READ
    ) -> bytes:
        """Ask the server about the current session."""
        assert self._current is not None
        params = {"session": self._current.id}
        return await self._client.connection.ask(do, params=params, body=body or {}, again=again)

    # Processes

    @property
    def containment(self) -> "Containment | None":
        return None

    @property
    def sandbox(self) -> "SandboxReport | None":
        """None: only the other process knows. `bargein doctor` says what works on a machine."""
        return None

    async def users_containment(self) -> "Containment | None":
        """The containment of the user's own commands, which run on this machine."""
        if self._containment is None:
            from bargein.process import open_containment

            opened = await open_containment()
            self._containment = await self._stack.enter_async_context(opened)
        return self._containment

    async def hurry(self) -> None:
        await self._ask("hurry_stop", again=Resend.SAME)


class AttachedSession(Session):
    """A session over the wire that keeps its state as of the last event shown."""

    def __init__(self, connection: ServerConnection, session_id: str) -> None:
        super().__init__(connection, session_id)
        self.latest = SessionState()
        self.on_placed: Callable[[], Awaitable[None]] = _nothing
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
                if any(map(_places, batch)):
                    await self.on_placed()
                yield batch

    async def pause(self) -> None:
        await super().pause()
        await self._refresh()

    async def resume(self) -> None:
        await super().resume()
        await self._refresh()

    async def _refresh(self) -> None:
        # Without an answer the old state stays; the watch or the call then ends with the error.
        with suppress(BargeinError):
            self.latest = await self.state()


async def _nothing() -> None:
    pass


def _places(event: Watched) -> bool:
    return isinstance(event, Recorded) and isinstance(event.event, SessionPlaced)


def _changes_state(event: Watched) -> bool:
    """Whether an event may change the state. Pieces of text are frequent and change only text."""
    if isinstance(event, Recorded):
        return not isinstance(event.event, TextCheckpoint)
    return isinstance(event, Stopping | Paused)
