"""A client of one server: its sessions, and the connection that they share."""

from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import Self

from bargein.client.address import Address, parse_address
from bargein.client.commands import FirstCommand, Resend
from bargein.client.connection import PATIENCE_S, ServerConnection
from bargein.client.session import Session
from bargein.client.wire import (
    DetailReply,
    HelloFrame,
    Me,
    PromptReply,
    SessionPage,
    SessionSummary,
    StoppedReply,
    read,
)
from bargein.contracts.receipt import Receipt
from bargein.errors import UserError
from bargein.mcp.overview import McpOverview


class Client:
    """`async with Client("https://example.org/", token="...") as client:`

    `address` is `http://`, `https://` or `unix:PATH`. Without `token`, the client uses the token
    behind `#token=` in the address. `fingerprint` is the SHA-256 of the server's certificate, which
    then needs no signature of an authority. If the server is gone, the client tries to reach it for
    `patience_s`; then everything unanswered raises `Disconnected`. `plain` allows http:// to
    another machine. `on_connected` is called with False when the connection is lost, and with True
    when it is there. `before_connecting` is awaited before each attempt; an error that it raises
    ends the client. `says_first` returns commands that go out first on every new connection.
    """

    def __init__(
        self,
        address: str,
        *,
        token: str | None = None,
        fingerprint: str | None = None,
        patience_s: float = PATIENCE_S,
        plain: bool = False,
        on_connected: Callable[[bool], object] | None = None,
        before_connecting: Callable[[], Awaitable[object]] | None = None,
        says_first: Callable[[HelloFrame], Sequence[FirstCommand]] | None = None,
    ) -> None:
        self.address: Address = parse_address(address, fingerprint, plain=plain)
        self._token = token or self.address.token or ""
        self._patience_s = patience_s
        self._on_connected = on_connected
        self._before_connecting = before_connecting
        self._says_first = says_first
        self._opened: ServerConnection | None = None

    async def __aenter__(self) -> Self:
        connection = ServerConnection(
            self.address,
            self._token,
            patience_s=self._patience_s,
            on_connected=self._on_connected,
            before_connecting=self._before_connecting,
            says_first=self._says_first,
        )
        await connection.open()
        self._opened = connection
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._opened is not None:
            await self._opened.close()

    @property
    def connection(self) -> ServerConnection:
        if self._opened is None:
            raise UserError("the client is not open; use `async with Client(...) as client:`")
        return self._opened

    @property
    def is_connected(self) -> bool:
        """Whether the server can be reached now. Nothing is lost while it cannot."""
        return self._opened is not None and self._opened.is_connected

    async def session(self, session_id: str) -> Session:
        """Return a session of the server. Raises `NotFound` if the server does not have it, or if
        it is another principal's."""
        await self.connection.ask("get_session", params={"session": session_id})
        return Session(self.connection, session_id)

    async def new_session(self, *, title: str = "", session_id: str | None = None) -> Session:
        """Make a new session. The server chooses its id, unless an admin gives one."""
        body = {"title": title} if title else {}
        body |= {"id": session_id} if session_id is not None else {}
        made = await self.connection.ask("create_session", body=body, again=Resend.SAME)
        return Session(self.connection, read(DetailReply, made).session.id)

    async def sessions(self, *, limit: int = 50) -> tuple[SessionSummary, ...]:
        """Return the caller's sessions and the shared ones that it has accepted, the last updated
        first."""
        found: list[SessionSummary] = []
        before: str | None = None
        while len(found) < limit:
            query = {"limit": str(min(200, limit - len(found)))}
            query |= {"before": before} if before is not None else {}
            page = read(SessionPage, await self.connection.ask("list_sessions", query=query))
            found += page.sessions
            before = page.next
            if before is None:
                break
        return tuple(found)

    async def delete(self, session_id: str) -> None:
        """Stop all that runs in a session and remove it for good."""
        params = {"session": session_id}
        await self.connection.ask("delete_session", params=params, again=Resend.SAME)

    async def stop_all(self) -> tuple[Receipt, ...]:
        """Stop everything that runs in all sessions, the background included. For an admin."""
        answer = await self.connection.ask(
            "stop_running", body={"scope": "session"}, again=Resend.SAME
        )
        return read(StoppedReply, answer).receipts

    async def mcp(self) -> McpOverview:
        """Return the MCP servers that the caller's sessions use; for an admin, those of all
        principals."""
        return read(McpOverview, await self.connection.ask("list_mcp_servers"))

    async def mcp_prompt(self, name: str, words: str = "") -> str:
        """Return the text of an MCP server's prompt, by a name such as `mcp__git__review`."""
        answer = await self.connection.ask(
            "get_mcp_prompt", params={"prompt": name}, body={"words": words}, again=Resend.SAME
        )
        return read(PromptReply, answer).text

    async def me(self) -> Me:
        """Who the token speaks for."""
        return read(Me, await self.connection.ask("whoami"))
