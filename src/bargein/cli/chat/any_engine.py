"""What the terminal needs of an engine beside its sessions.

`bargein.Engine` is one, in this process. `bargein.cli.attached` has the other, for an engine that
another process runs. The terminal is written once, against this.
"""

from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

from bargein.contracts.model import ToolSchema
from bargein.contracts.permission import PermissionMode
from bargein.session.any_session import AnySession
from bargein.session.state import SessionState

if TYPE_CHECKING:
    from bargein.mcp.prompts import ListedPrompt
    from bargein.mcp.servers import ServerStatus
    from bargein.process import Containment


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
    def workspace(self) -> str:
        """The folder that the agent works in; empty if that is not known."""
        ...

    @property
    def model_name(self) -> str: ...

    @property
    def model_why(self) -> str: ...

    @property
    def tools(self) -> tuple[ToolSchema, ...]: ...

    @property
    def takes_tools(self) -> bool: ...

    @property
    def containment(self) -> "Containment | None": ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None: ...

    async def session(self, session_id: str) -> AnySession: ...

    async def sessions(self, *, limit: int = 100) -> Sequence[ListedSession]: ...

    def state(self, session_id: str) -> SessionState | None: ...

    def mode(self, session_id: str) -> PermissionMode | None: ...

    def in_background(self, *, but: str) -> list[str]: ...

    def use_model(self, name: str) -> None: ...

    async def warm_up(self) -> None: ...

    def mcp_status(self) -> "tuple[ServerStatus, ...]": ...

    async def mcp_prompts(self) -> "tuple[ListedPrompt, ...]": ...

    async def mcp_prompt(self, name: str, words: str = "") -> str: ...

    async def users_containment(self) -> "Containment | None": ...

    async def hurry(self) -> None: ...
