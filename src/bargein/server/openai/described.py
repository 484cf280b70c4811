"""Describes the OpenAI-compatible routes for the OpenAPI document.

OpenAI documents the answers. Described here are the fields of requests that have an effect, every
error, and what is stopped when a client goes away.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from bargein.server.openai.shapes import ChatRequest, ErrorBody, ResponseRequest
from bargein.server.problems import MEDIA_TYPE, STATUS, Code, ProblemBody

TAG = "openai"
BODIES: tuple[type[msgspec.Struct], ...] = (ChatRequest, ResponseRequest, ErrorBody)
EXAMPLES: dict[type[msgspec.Struct], object] = {
    ChatRequest: {
        "model": "bargein",
        "messages": [{"role": "user", "content": "Count to ten"}],
        "stream": True,
    },
    ResponseRequest: {"model": "bargein", "input": "Count to ten", "background": True},
}

ALWAYS = (
    Code.BAD_REQUEST,
    Code.UNAUTHENTICATED,
    Code.FORBIDDEN,
    Code.NOT_FOUND,
    Code.TOO_MANY,
    Code.SHUTTING_DOWN,
    Code.UNAVAILABLE,
    Code.UNREADABLE,
)
WITH_BODY = (
    Code.BAD_JSON,
    Code.TOO_SLOW,
    Code.BUSY,
    Code.ID_REUSED,
    Code.TOO_LARGE,
    Code.WRONG_TYPE,
    Code.UNANSWERED,
)
# Refused before the route is known, and so in the form of all other routes.
BEFORE = (Code.WRONG_HOST, Code.WRONG_ORIGIN)

ANY = {"type": "object"}
STREAM: dict[str, object] = {"text/event-stream": {}}
KEY: dict[str, object] = {
    "name": "Idempotency-Key",
    "in": "header",
    "description": "a repeated key takes effect once; its answer has Idempotency-Replayed",
    "schema": {"type": "string", "pattern": "^[!-~]{1,200}$"},
}
RESPONSE: dict[str, object] = {
    "name": "response",
    "in": "path",
    "required": True,
    "description": "the id of the response",
    "schema": {"type": "string", "minLength": 1},
}
MODEL = {**RESPONSE, "name": "model", "description": "the id of the model"}


def _query(name: str, description: str, **schema: object) -> dict[str, object]:
    return {"name": name, "in": "query", "description": description, "schema": schema}


RESUMING = [
    RESPONSE,
    _query("stream", "its events, as they come", type="boolean"),
    _query("starting_after", "only events after this number", type="integer", minimum=0),
]
LISTING = [
    RESPONSE,
    _query("limit", "how many at most; 20 unless given", type="integer", minimum=0),
    _query("order", "desc unless given", type="string", enum=["asc", "desc"]),
    _query("after", "the id after which the page begins", type="string"),
]

Found = Mapping[Any, dict[str, Any]]


def describe(found: Found) -> dict[str, dict[str, object]]:
    """Returns the routes by path and method. `found` has the schemas of `BODIES` and problems."""
    return {
        "/v1/chat/completions": {
            "post": _create(
                "create_chat_completion",
                "Run one turn for a list of messages, streamed or not, as OpenAI's API does.",
                "A client that goes away stops the turn, even before it has begun.",
                ChatRequest,
                found,
            )
        },
        "/v1/responses": {
            "post": _create(
                "create_response",
                "Run a turn that has an id, by which it can be read and cancelled.",
                "A client that goes away stops the turn, unless it runs in the background.",
                ResponseRequest,
                found,
            )
        },
        "/v1/responses/{response}": {
            "get": _read(
                "get_response",
                "Read a response as it is now, or its events from any place on.",
                RESUMING,
                found,
                STREAM,
            ),
            "delete": _read(
                "delete_response",
                "Delete a response with its session, if the session has no other.",
                [RESPONSE],
                found,
            ),
        },
        "/v1/responses/{response}/input_items": {
            "get": _read("list_input_items", "List the input items of a response.", LISTING, found)
        },
        "/v1/responses/{response}/cancel": {
            "post": _read(
                "cancel_response",
                "Stop a response, and answer when everything has settled. Too late is no error.",
                [RESPONSE, KEY],
                found,
                codes=(Code.ID_REUSED,),
            )
        },
        "/v1/models": {"get": _read("list_models", "List the agent, by its names.", [], found)},
        "/v1/models/{model}": {
            "get": _read("get_model", "Read the agent, by one of its names.", [MODEL], found)
        },
    }


def _create(
    name: str, summary: str, disconnect: str, body: type[msgspec.Struct], found: Found
) -> dict[str, object]:
    content = {"schema": found[body], "example": EXAMPLES[body]}
    return {
        "operationId": name,
        "tags": [TAG],
        "summary": summary,
        "description": f"{summary}\n\nIf the caller goes away: {disconnect}",
        "parameters": [KEY],
        "requestBody": {"required": True, "content": {"application/json": content}},
        "responses": {
            "200": {
                "description": "The answer, in OpenAI's form.",
                "content": {"application/json": {"schema": ANY}, **STREAM},
            },
            **_errors((*ALWAYS, *WITH_BODY), found),
        },
    }


def _read(
    name: str,
    summary: str,
    parameters: list[dict[str, object]],
    found: Found,
    more: Mapping[str, object] | None = None,
    codes: tuple[Code, ...] = (),
) -> dict[str, object]:
    return {
        "operationId": name,
        "tags": [TAG],
        "summary": summary,
        "description": f"{summary}\n\nIf the caller goes away: Only the waiting ends.",
        "parameters": parameters,
        "responses": {
            "200": {
                "description": "In OpenAI's form.",
                "content": {"application/json": {"schema": ANY}, **(more or {})},
            },
            **_errors((*ALWAYS, *codes), found),
        },
    }


def _errors(codes: tuple[Code, ...], found: Found) -> dict[str, object]:
    by_status: dict[int, list[Code]] = {}
    for code in (*codes, *BEFORE):
        by_status.setdefault(STATUS[code][0], []).append(code)
    return {
        str(status): {
            "description": "; ".join(f"`{code}`: {STATUS[code][1]}" for code in those),
            "content": _content(those, found),
        }
        for status, those in sorted(by_status.items())
    }


def _content(codes: list[Code], found: Found) -> dict[str, object]:
    made: dict[str, object] = {}
    if any(code not in BEFORE for code in codes):
        made["application/json"] = {"schema": found[ErrorBody]}
    if any(code in BEFORE for code in codes):
        made[MEDIA_TYPE] = {"schema": found[ProblemBody]}
    return made
