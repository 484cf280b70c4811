"""The ASGI app: the API under /v1, the page at /, health and metrics."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import cache
from pathlib import Path

import anyio
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Match, Mount, Route, WebSocketRoute
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Scope

from bargein.cluster.node import open_node
from bargein.errors import BargeinError
from bargein.server.admin import ADMIN_OPERATIONS
from bargein.server.anywhere import Anywhere
from bargein.server.edge import Edge, json_response, problem_response
from bargein.server.gateway import Gateway
from bargein.server.guard import Guard
from bargein.server.guest_operations import GUEST_OPERATIONS
from bargein.server.looking import LOOKING_OPERATIONS
from bargein.server.mcp_operations import MCP_OPERATIONS
from bargein.server.openai import openai_routes
from bargein.server.openapi import document
from bargein.server.operation import Operation
from bargein.server.permissions import PERMISSION_OPERATIONS
from bargein.server.places import PLACE_OPERATIONS
from bargein.server.problems import Code, Problem, as_problem
from bargein.server.readiness import READY_S, Readiness
from bargein.server.request_context import RequestContext
from bargein.server.routing import CALL, SESSION, OperationEndpoint, Shortcut
from bargein.server.searching import SEARCH_OPERATIONS
from bargein.server.sessions import SESSION_OPERATIONS, passing_left, unmake_all
from bargein.server.shapes import Health
from bargein.server.sharing import SHARING_OPERATIONS
from bargein.server.socket import ConnectionEndpoint, SocketEndpoint
from bargein.server.streams import EventStream
from bargein.server.talking import TALKING_OPERATIONS
from bargein.server.upkeep import UPKEEP_OPERATIONS

PAGE = Path(__file__).parent / "page"

OPERATIONS: tuple[Operation, ...] = (
    *ADMIN_OPERATIONS,
    *TALKING_OPERATIONS,
    *LOOKING_OPERATIONS,
    *UPKEEP_OPERATIONS,
    *SHARING_OPERATIONS,
    *GUEST_OPERATIONS,
    *SESSION_OPERATIONS,
    *PERMISSION_OPERATIONS,
    *PLACE_OPERATIONS,
    *SEARCH_OPERATIONS,
    *MCP_OPERATIONS,
)


NODE_REQUESTS = (
    "bargein_node_requests",
    "Requests for sessions of other nodes: over HTTP, by letter, and taken over.",
    "road",
)

SESSIONS_MOVED = (
    "bargein_node_sessions_moved",
    "Sessions that came here from other nodes or went from here, by the cause.",
    "cause",
)


class _PageFiles(StaticFiles):
    """Makes browsers check each file again (304 if it is unchanged), so that after an upgrade no
    page runs with files of two versions."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        response.headers["cache-control"] = "no-cache"
        return response


@asynccontextmanager
async def running(gateway: Gateway) -> AsyncIterator[None]:
    """Runs the gateway's own tasks, and cancels them on leaving. The app's lifespan enters it. A
    program that mounts the app in another, where no lifespan runs, must enter it itself."""
    await gateway.access.load()
    left = await passing_left(gateway)
    async with AsyncExitStack() as stack:
        if gateway.anywhere is not None:
            gateway.peers = await stack.enter_async_context(
                open_node(
                    gateway.engine,
                    watch=gateway.anywhere.frames,
                    perform=gateway.anywhere.answer,
                    address=gateway.settings.node_address,
                )
            )
        elsewhere = gateway.engine.elsewhere
        if elsewhere is not None:
            gateway.metrics.add_gauges(
                lambda: {NODE_REQUESTS: elsewhere.counts, SESSIONS_MOVED: elsewhere.moved}
            )
        group = await stack.enter_async_context(anyio.create_task_group())
        gateway.tasks = group
        group.start_soon(gateway.look_after_streams)
        group.start_soon(gateway.db.hear, gateway.changed, gateway.uses.hear)
        group.start_soon(unmake_all, gateway, left)
        if gateway.db.is_shared:
            group.start_soon(gateway.uses.tell)
        yield
        gateway.audit.flush()
        group.cancel_scope.cancel()


def build_app(gateway: Gateway, *, more_routes: Sequence[BaseRoute] = ()) -> ASGIApp:
    """Builds the app of a gateway, with `more_routes` beside those of the API."""
    edge = Edge(gateway)
    gateway.anywhere = edge.anywhere = Anywhere(edge, OPERATIONS)

    api = [
        Route(f"/v1/sessions/{SESSION}/events", EventStream(edge), methods=["GET"]),
        # The longest paths first, because the ids of children contain slashes.
        *(_route(edge, each) for each in sorted(OPERATIONS, key=lambda it: -it.path.count("/"))),
    ]
    routes: list[BaseRoute] = [
        *more_routes,
        *openai_routes(edge),
        WebSocketRoute("/v1/socket", ConnectionEndpoint(edge, OPERATIONS).serve),
        WebSocketRoute(f"/v1/sessions/{SESSION}/socket", SocketEndpoint(edge, OPERATIONS).serve),
        *api,
        Route("/v1/join", _join(edge), methods=["POST"]),
        Route("/v1/openapi.json", _openapi),
        Route("/healthz", _health(gateway)),
        Route("/readyz", _ready(gateway)),
        Route("/metrics", _metrics(edge)),
        Route("/", _page),
        Mount("/static", _PageFiles(directory=PAGE, check_dir=False)),
    ]
    app = Starlette(
        routes=routes,
        lifespan=lambda app: running(gateway),
        exception_handlers={
            HTTPException: _http_problem,
            BargeinError: _any_problem,
            ClientDisconnect: _gone,
            TimeoutError: _unavailable,
            Exception: _any_problem,
        },
    )
    app.router.redirect_slashes = False
    settings = gateway.settings
    guarded = Guard(Shortcut(api, app), names=settings.names, origins=settings.origins)
    return RequestContext(guarded, gateway)


def _route(edge: Edge, operation: Operation) -> Route:
    path = operation.path.replace("{session}", SESSION).replace("{call}", CALL)
    endpoint = OperationEndpoint(edge, operation)
    return Route(f"/v1{path}", endpoint, methods=[operation.method], name=operation.name)


Endpoint = Callable[[Request], Awaitable[Response]]


TOKEN_IN_QUERY = (
    "the address has a token after its question mark, where proxies log it; it was not used. Put "
    "it after #token= (the page) or into the header Authorization: Bearer TOKEN (programs)"
)


async def _page(request: Request) -> Response:
    """Sends the page, which reads the token from the fragment of its address. Browsers do not send
    the fragment."""
    if "token" in request.query_params:
        if _is_browser(request):
            return RedirectResponse("/#token-in-query", 303)
        raise Problem(Code.BAD_REQUEST, TOKEN_IN_QUERY)
    return FileResponse(PAGE / "index.html", headers={"cache-control": "no-cache"})


def _is_browser(request: Request) -> bool:
    return "text/html" in request.headers.get("accept", "")


@cache
def _document() -> bytes:
    return document(OPERATIONS)


async def _openapi(request: Request) -> Response:
    return Response(_document(), media_type="application/json")


def _health(gateway: Gateway) -> Endpoint:
    async def health(request: Request) -> Response:
        """Answers as long as the process does."""
        return json_response(Health("ok"))

    return health


def _ready(gateway: Gateway) -> Endpoint:
    readiness = Readiness(gateway)

    async def ready(request: Request) -> Response:
        """Answers 503 while the server shuts down, and while its disk is full or does not
        answer."""
        gateway.refuse_if_draining()
        await readiness.check()
        return json_response(Health("ready"))

    return ready


def _join(edge: Edge) -> Endpoint:
    async def join(request: Request) -> Response:
        """Gives a guest a token for the code of an invitation, which the header has."""
        response = json_response(await edge.join(request))
        response.headers["cache-control"] = "no-store"
        return response

    return join


def _metrics(edge: Edge) -> Endpoint:
    async def metrics(request: Request) -> Response:
        """Sends the metrics to Prometheus, which needs an admin's token."""
        principal = edge.principal(request)
        if not principal.sees_all:
            raise Problem(Code.FORBIDDEN, "the metrics cover all sessions: use an admin's token")
        metrics = edge.gateway.metrics
        content = metrics.render(edge.gateway.now())
        return Response(content, headers={"content-type": metrics.content_type})

    return metrics


async def _http_problem(request: Request, error: Exception) -> Response:
    """Answers for what the router itself refuses."""
    assert isinstance(error, HTTPException)
    path = request.url.path[:200]
    if error.status_code == 405:
        # The router names only the methods of the first route with this path.
        routes = [each for each in request.app.routes if isinstance(each, Route)]
        partly = [each for each in routes if each.matches(request.scope)[0] is Match.PARTIAL]
        allowed = ", ".join(sorted({name for each in partly for name in each.methods or ()}))
        problem = Problem(
            Code.METHOD_NOT_ALLOWED, f"{request.method} is not for {path}; allowed: {allowed}"
        )
        response = problem_response(problem)
        response.headers["allow"] = allowed
        return response
    return problem_response(
        Problem(Code.NOT_FOUND, f"there is nothing at {path}; /v1/openapi.json lists what there is")
    )


async def _unavailable(request: Request, error: Exception) -> Response:
    problem = Problem(
        Code.UNAVAILABLE, f"the disk did not answer within {READY_S:g} s", retry_after_s=1
    )
    return problem_response(problem)


async def _gone(request: Request, error: Exception) -> Response:
    return Response(status_code=499)


async def _any_problem(request: Request, error: Exception) -> Response:
    return problem_response(as_problem(error))
