"""The interface of an engine for the terminal, besides its sessions.

`bargein.Engine` is one, in this process. `bargein.cli.attached` has the other, for an engine that
another process runs. The terminal is written once, against this.
"""

from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

from bargein.contracts.model import ToolSchema
from bargein.contracts.permission import PermissionMode
from bargein.contracts.receipt import Receipt
from bargein.session.any_session import AnySession
from bargein.session.state import SessionState

if TYPE_CHECKING:
    from bargein.cli.attached import AttachedEngine
    from bargein.mcp.overview import McpOverview
    from bargein.process import Containment, SandboxReport


class ListedSession(Protocol):
    """A session in a list."""

    @property
    def id(self) -> str: ...

    @property
    def title(self) -> str: ...

    @property
    def updated_at(self) -> float: ...


class AnyEngine(Protocol):
    """The methods are those of `bargein.Engine`, where they are described."""

    @property
    def attached_to(self) -> str:
        """Where the engine runs, in words; empty for the one of this process, which ends with
        it."""
        ...

    @property
    def own_senders(self) -> frozenset[str]:
        """The senders that stand for the user of this terminal."""
        ...

    @property
    def sharing(self) -> "AttachedEngine | None":
        """Shares sessions with guests, where that is possible."""
        ...

    @property
    def workspace(self) -> str:
        """The folder that the agent works in; empty if that is not known."""
        ...

    @property
    def has_places(self) -> bool:
        """Whether sessions work in folders of their own."""
        ...

    def workspace_of(self, session: Any) -> str:
        """The folder of a session in a list; empty if nobody has said."""
        ...

    @property
    def model_name(self) -> str: ...

    @property
    def model_why(self) -> str: ...

    @property
    def context_tokens(self) -> int | None:
        """How many tokens the model reads at most; None if that is not known."""
        ...

    @property
    def tools(self) -> tuple[ToolSchema, ...]: ...

    @property
    def takes_tools(self) -> bool: ...

    @property
    def containment(self) -> "Containment | None": ...

    @property
    def sandbox(self) -> "SandboxReport | None": ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None: ...

    async def session(self, session_id: str) -> AnySession: ...

    def child(self, session_id: str) -> AnySession:
        """The session of a sub-agent, to look at."""
        ...

    async def sessions(self, *, limit: int = 100) -> Sequence[ListedSession]: ...

    def state(self, session_id: str) -> SessionState | None: ...

    def mode(self, session_id: str) -> PermissionMode | None: ...

    def in_background(self, *, but: str) -> list[str]: ...

    async def use_model_in(self, session_id: str, name: str) -> None: ...

    async def stop_all(self) -> tuple[Receipt, ...]: ...

    async def warm_up(self) -> None: ...

    async def mcp_overview(self) -> "McpOverview": ...

    async def mcp_prompt(self, name: str, words: str = "") -> str: ...

    async def users_containment(self) -> "Containment | None": ...

    async def hurry(self) -> None: ...
