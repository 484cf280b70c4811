"""The OpenAI-compatible side of the gateway: chat completions, responses, models."""

from starlette.requests import Request
from starlette.routing import Route

from bargein.server.access import Principal
from bargein.server.edge import Edge
from bargein.server.openai.asking import NAME, OpenAiEndpoint
from bargein.server.openai.chat import ChatCompletions
from bargein.server.openai.outlet import Outlet
from bargein.server.openai.responses import (
    CancelResponse,
    DeleteResponse,
    InputItems,
    OneResponse,
    Responses,
)


def _model(name: str) -> dict[str, object]:
    return {"id": name, "object": "model", "created": 0, "owned_by": NAME}


class Models(OpenAiEndpoint):
    """`GET /v1/models`: lists the agent, under our name and under its model's."""

    name = "list_models"
    changes = False

    async def answer(self, request: Request, principal: Principal, outlet: Outlet) -> None:
        names = dict.fromkeys((NAME, self.gateway.settings.model or NAME))
        await outlet.json({"object": "list", "data": list(map(_model, names))})


class OneModel(OpenAiEndpoint):
    """`GET /v1/models/{id}`."""

    name = "get_model"
    changes = False

    async def answer(self, request: Request, principal: Principal, outlet: Outlet) -> None:
        await outlet.json(_model(self.check_model(request.path_params["model"])))


def openai_routes(edge: Edge) -> list[Route]:
    passing: set[str] = set()
    routes: list[tuple[str, str, type[OpenAiEndpoint]]] = [
        ("POST", "/chat/completions", ChatCompletions),
        ("POST", "/responses", Responses),
        ("GET", "/responses/{response}", OneResponse),
        ("DELETE", "/responses/{response}", DeleteResponse),
        ("GET", "/responses/{response}/input_items", InputItems),
        ("POST", "/responses/{response}/cancel", CancelResponse),
        ("GET", "/models", Models),
        ("GET", "/models/{model:path}", OneModel),
    ]
    return [
        Route(f"/v1{path}", kind(edge, passing), methods=[method]) for method, path, kind in routes
    ]
