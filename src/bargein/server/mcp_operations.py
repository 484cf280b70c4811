"""Operations on the MCP servers of the agent: list them as `/mcp` does, and read a prompt."""

from bargein.errors import UserError
from bargein.mcp.errors import McpError
from bargein.mcp.overview import McpOverview, McpSource
from bargein.server.operation import ApiRequest, Operation, Reply, lookup, operation
from bargein.server.problems import Code, Problem, not_found
from bargein.server.shapes import PromptAsked, PromptText


@lookup("/mcp", replies={200: McpOverview})
async def list_mcp_servers(request: ApiRequest) -> Reply:
    """List the MCP servers that the caller's sessions use, with state, tools, version, last error
    and processes, and the prompts of those that run. An admin sees those of all principals."""
    source, who = _source(request), request.principal
    if source is None:
        return Reply(200, McpOverview())
    return Reply(200, await source.mcp_overview(None if who.sees_all else who.name))


@operation(
    "POST",
    "/mcp/prompts/{prompt}",
    PromptAsked,
    kept=False,
    replies={200: PromptText},
    problems=(Code.NOT_FOUND, Code.BAD_REQUEST, Code.UNAVAILABLE),
    audited=False,
    disconnect="Ends the waiting; the server may still be started.",
)
async def get_mcp_prompt(request: ApiRequest, body: PromptAsked) -> Reply:
    """Read the text of an MCP server's prompt, by a name such as `mcp__git__review`. Send it as a
    message to use it. Starts the server if it is not running."""
    source, name = _source(request), request.params["prompt"]
    if source is None or request.principal.read_only:
        raise not_found(f"prompt {name!r}")
    try:
        return Reply(
            200, PromptText(await source.mcp_prompt(name, body.words, request.principal.name))
        )
    except McpError as error:
        raise Problem(Code.UNAVAILABLE, str(error)) from error
    except UserError as error:
        raise Problem(Code.BAD_REQUEST, str(error)) from error


def _source(request: ApiRequest) -> McpSource | None:
    """The servers that the caller may use. A guest of a shared chat may only talk there: it learns
    nothing about the owner's servers and starts none."""
    guests = request.gateway.guests
    if guests is not None and guests.is_guest(request.principal):
        return None
    return request.gateway.mcp


MCP_OPERATIONS: tuple[Operation, ...] = (list_mcp_servers, get_mcp_prompt)
