"""Finds the operation for a path, faster than Starlette does.

Starlette tries its routes one after the other, and a pattern whose id may contain slashes reads a
whole path before it fails. `Shortcut` finds the API's routes by the method and the last word of the
path. It leaves everything else to Starlette: the page, sockets, and the errors for unknown paths
and methods.
"""

from collections.abc import Sequence

from starlette.convertors import Convertor, register_url_convertor
from starlette.requests import Request
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from bargein.server.edge import Edge
from bargein.server.operation import Operation

SESSION = "{session:id}"
CALL = "{call:id}"


class _AnyPart(Convertor[str]):
    """An id: one or more segments, none of them empty."""

    regex = "[^/]+(?:/[^/]+)*"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("id", _AnyPart())


class OperationEndpoint:
    """An ASGI app that performs one operation. `Edge.serve` turns every error into an answer."""

    def __init__(self, edge: Edge, operation: Operation) -> None:
        self._edge = edge
        self._operation = operation

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = await self._edge.serve(self._operation, Request(scope, receive))
        await response(scope, receive, send)


class Shortcut:
    """Tries `routes` in their order, then `app`, which knows the same routes and more."""

    def __init__(self, routes: Sequence[Route], app: ASGIApp) -> None:
        self._app = app
        self._by_word: dict[tuple[str, str], list[Route]] = {}
        words = {_last_word(each) for each in routes}
        for method in {name for each in routes for name in each.methods or ()}:
            for word in words:
                # A route that ends in a parameter is tried for every word.
                self._by_word[method, word] = [
                    each
                    for each in routes
                    if method in (each.methods or ()) and _last_word(each) in (word, "")
                ]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            method, word = scope["method"], scope["path"].rpartition("/")[2]
            others = self._by_word.get((method, ""), [])
            for route in self._by_word.get((method, word), others):
                match, found = route.matches(scope)
                if match is Match.FULL:
                    scope.update(found)
                    await route.app(scope, receive, send)
                    return
        await self._app(scope, receive, send)


def _last_word(route: Route) -> str:
    """Returns the last word of the route's path, empty if it is a parameter."""
    word = route.path.rpartition("/")[2]
    return "" if word.startswith("{") else word
