"""A client of the Model Context Protocol: tools from other people's servers, stopped like our own.

One task owns each connection (`connection`). Below it are two seams: the transport (`stdio`,
`http`) and the era (`eras`). `life` starts a server when it is needed, `foreign_tool` runs and
stops a call, and `servers` has all servers of an engine. docs/mcp.md says what is promised.

Runs on asyncio and uvloop, as the processes do that it starts.
"""

from bargein.mcp.errors import McpError, Rejected, ServerDown, SignInNeeded
from bargein.mcp.server import McpServer

__all__ = ["McpError", "McpServer", "Rejected", "ServerDown", "SignInNeeded"]
