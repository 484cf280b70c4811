"""The OpenAI-compatible side of the gateway: chat completions, responses, models."""

from starlette.requests import Request
from starlette.routing import Route

from bargein.server.access import Principal
from bargein.server.edge import Edge
from bargein.server.openai.asking import NAME, Endpoint, Outlet
from bargein.server.openai.chat import ChatCompletions
from bargein.server.openai.responses import CancelResponse, OneResponse, Responses


class Models(Endpoint):
    """`GET /v1/models`: the agent, under our name and under that of its model."""

    name = "list_models"
    changes = False

    async def answer(self, request: Request, principal: Principal, outlet: Outlet) -> None:
        names = dict.fromkeys((NAME, self.gateway.settings.model or NAME))
        data = [{"id": name, "object": "model", "created": 0, "owned_by": NAME} for name in names]
        await outlet.json({"object": "list", "data": data})


def openai_routes(edge: Edge) -> list[Route]:
    return [
        Route("/v1/chat/completions", ChatCompletions(edge), methods=["POST"]),
        Route("/v1/responses", Responses(edge), methods=["POST"]),
        Route("/v1/responses/{response}", OneResponse(edge), methods=["GET"]),
        Route("/v1/responses/{response}/cancel", CancelResponse(edge), methods=["POST"]),
        Route("/v1/models", Models(edge), methods=["GET"]),
    ]
