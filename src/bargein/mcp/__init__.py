"""A client of the Model Context Protocol: tools from other people's servers, stopped like our own.

One task owns each connection (`connection`); transports (`stdio`, `http`) and eras (`eras`) are two
small seams below it. `life` starts servers lazily, `foreign_tool` is how a call goes and how it is
stopped, `servers` has all servers of an engine. docs/mcp.md says what is promised.

For asyncio and uvloop, like the processes that it starts.
"""

from bargein.mcp.errors import McpError, Rejected, ServerDown, SignInNeeded
from bargein.mcp.server import McpServer

__all__ = ["McpError", "McpServer", "Rejected", "ServerDown", "SignInNeeded"]
