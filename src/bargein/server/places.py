"""Operations on the place of a session: its folder and model, its tools and its MCP servers.

Only the owner's own door may place a session, because that decides what the agent's commands can
reach on this machine.
"""

import os

import msgspec

from bargein.contracts.model import ToolSchema
from bargein.contracts.place import SessionPlace
from bargein.errors import UserError
from bargein.mcp.overview import McpOverview
from bargein.runtime.opened_agent import OpenedAgent
from bargein.server.access import DOOR
from bargein.server.operation import ApiRequest, Operation, Reply, lookup, operation
from bargein.server.problems import Code, Problem
from bargein.server.shapes import (
    Done,
    LeaveWanted,
    Nothing,
    PlaceWanted,
    PromptText,
    PromptWanted,
    StageWanted,
)
from bargein.session.agent import LoopAgent


class PlaceView(msgspec.Struct, frozen=True):
    """The folder, model and tools of a session. `chosen` is the model that its place names; `model`
    is the model in use, and `why` the reason. `takes_tools`: the model can use tools. A session
    without an agent has only the folder and `chosen`."""

    workspace: str = ""
    chosen: str = ""
    model: str = ""
    why: str = ""
    takes_tools: bool = True
    tools: tuple[ToolSchema, ...] = ()


@operation(
    "PUT",
    "/sessions/{session}/place",
    PlaceWanted,
    replies={200: PlaceView},
    problems=(Code.NOT_FOUND, Code.FORBIDDEN, Code.BUSY),
    kept=False,
)
async def place_session(request: ApiRequest, body: PlaceWanted) -> Reply:
    """Let a session work in this folder with this model, from its next turn on. Only for terminals
    of the user who runs the server, by its unix socket. The environment stays in memory."""
    opened = await request.open("own")
    if request.principal.token != DOOR:
        raise Problem(Code.FORBIDDEN, "only a terminal of the server's own user places a session")
    if not request.gateway.settings.places:
        raise Problem(Code.FORBIDDEN, "this server works in one folder, or in none")
    if not os.path.isabs(body.workspace):
        raise Problem(Code.BAD_REQUEST, f"workspace is {body.workspace!r}; give an absolute path")
    before = await opened.session.place()
    stays = before is not None and before.staged and before.workspace == body.workspace
    await opened.session.set_place(
        SessionPlace(body.workspace, body.model, stays if body.staged is None else body.staged),
        environment=body.environment,
        by=request.principal.name,
    )
    return Reply(200, await _view(request), note=body.workspace)


@lookup("/sessions/{session}/place", replies={200: PlaceView}, problems=(Code.NOT_FOUND,))
async def get_place(request: ApiRequest) -> Reply:
    """Read the folder, the model and the tools of a session."""
    await request.open()
    return Reply(200, await _view(request))


async def _view(request: ApiRequest) -> PlaceView:
    opened = await request.open()
    place = await opened.session.place() or SessionPlace("")
    found = request.gateway.opened_for(opened.root)
    if found is None:
        return PlaceView(place.workspace, place.model)
    agent, loop = found
    return PlaceView(
        place.workspace or str(agent.agent.workspace or ""),
        place.model,
        loop.model.name,
        "it was named" if place.model else agent.models.why,
        agent.models.can_use_tools(loop.model),
        agent.tools,
    )


@lookup("/sessions/{session}/mcp", replies={200: McpOverview}, problems=(Code.NOT_FOUND,))
async def get_mcp(request: ApiRequest) -> Reply:
    """Read what the MCP servers of a session's agent are doing, and list their prompts."""
    mcp = (await _agent(request))[0].mcp
    prompts = [each for servers in mcp for each in await servers.prompts()]
    statuses = [status for servers in mcp for status in servers.status()]
    return Reply(200, McpOverview(tuple(statuses), tuple(prompts)))


@operation(
    "POST",
    "/sessions/{session}/mcp/prompt",
    PromptWanted,
    replies={200: PromptText},
    problems=(Code.NOT_FOUND, Code.FORBIDDEN),
)
async def get_prompt(request: ApiRequest, body: PromptWanted) -> Reply:
    """Return the text of an MCP server's prompt, to be sent as a message."""
    for servers in (await _agent(request))[0].mcp:
        if any(body.name.startswith(f"mcp__{each}__") for each in servers.names):
            return Reply(200, PromptText(await servers.prompt(body.name, body.words)))
    raise UserError(f"no MCP server has a prompt /{body.name}; /mcp lists the servers")


@operation(
    "POST",
    "/sessions/{session}/warm",
    Nothing,
    replies={200: Done},
    problems=(Code.NOT_FOUND, Code.FORBIDDEN),
    kept=False,
    audited=False,
    disconnect="Ends the waiting; the model goes on loading.",
)
async def warm_up(request: ApiRequest, body: Nothing) -> Reply:
    """Load a session's model, if it runs on this machine, before the first turn needs it."""
    agent, loop = await _agent(request)
    await agent.models.warm(loop.model, request.gateway.engine.source.token)
    return Reply(200, Done())


@operation(
    "POST",
    "/sessions/{session}/hurry",
    Nothing,
    replies={200: Done},
    problems=(Code.NOT_FOUND, Code.FORBIDDEN),
    kept=False,
    while_draining=True,
)
async def hurry_stop(request: ApiRequest, body: Nothing) -> Reply:
    """Kill at once what is already being stopped, without further grace. It affects all sessions,
    so only callers who see all of them may ask for it."""
    await request.open("own")
    if not request.principal.sees_all:
        raise Problem(
            Code.FORBIDDEN, "this would also kill what others are stopping; your stop goes on"
        )
    await request.gateway.kill_stopping()
    return Reply(200, Done())


@operation(
    "POST",
    "/host/leave",
    LeaveWanted,
    replies={200: Done},
    problems=(Code.FORBIDDEN, Code.BUSY),
    kept=False,
)
async def leave_host(request: ApiRequest, body: LeaveWanted) -> Reply:
    """Ask an idle host to end, so that a terminal of another version can start its own. A server
    refuses."""
    leave = request.gateway.leave_if_idle
    if request.principal.token != DOOR or leave is None:
        raise Problem(Code.FORBIDDEN, "only a host leaves, and only for its own user's terminals")
    if not leave(body.connected):
        raise Problem(Code.BUSY, "it is at work, or another terminal is connected")
    return Reply(200, Done())


async def _agent(request: ApiRequest) -> tuple[OpenedAgent, LoopAgent]:
    opened = await request.open("own")
    await opened.session.position()
    found = request.gateway.opened_for(opened.root)
    if found is None:
        raise UserError("this session has no agent yet; a terminal gives it a folder")
    return found


@operation(
    "PUT",
    "/sessions/{session}/stage",
    StageWanted,
    replies={200: Done},
    problems=(Code.NOT_FOUND, Code.FORBIDDEN, Code.BUSY),
    kept=False,
)
async def stage_session(request: ApiRequest, body: StageWanted) -> Reply:
    """Let a session work in a copy of its folder, from its next turn on, or in the folder itself
    again. Only for terminals of the user who runs the server, by its unix socket."""
    opened = await request.open("own")
    if request.principal.token != DOOR:
        raise Problem(Code.FORBIDDEN, "only a terminal of the server's own user stages a session")
    await opened.session.set_staged(body.on, by=request.principal.name)
    return Reply(200, Done())


PLACE_OPERATIONS: tuple[Operation, ...] = (
    place_session,
    stage_session,
    get_place,
    get_mcp,
    get_prompt,
    warm_up,
    hurry_stop,
    leave_host,
)
