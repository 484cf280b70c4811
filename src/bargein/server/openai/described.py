"""The OpenAI-compatible routes in the OpenAPI document.

What they answer is OpenAI's to describe; said here are the requests as far as they mean something,
every error, and what a client that goes away stops.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from bargein.server.openai.shapes import ChatRequest, ResponseRequest
from bargein.server.problems import MEDIA_TYPE, STATUS, Code, ProblemBody

BODIES: tuple[type[msgspec.Struct], ...] = (ChatRequest, ResponseRequest)

ALWAYS = (
    Code.BAD_REQUEST,
    Code.UNAUTHENTICATED,
    Code.FORBIDDEN,
    Code.NOT_FOUND,
    Code.TOO_MANY,
    Code.SHUTTING_DOWN,
    Code.UNAVAILABLE,
)
WITH_BODY = (Code.BAD_JSON, Code.TOO_SLOW, Code.ID_REUSED, Code.TOO_LARGE, Code.WRONG_TYPE)
# Refused before it is known what was asked for, and so told as everywhere else.
BEFORE = (Code.WRONG_HOST, Code.WRONG_ORIGIN)

ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "code"],
            "properties": {name: {"type": "string"} for name in ("message", "type", "code")},
        }
    },
}
ANY = {"type": "object"}
KEY = {
    "name": "Idempotency-Key",
    "in": "header",
    "description": "the same one: the same effect, once",
    "schema": {"type": "string", "pattern": "^[!-~]{1,200}$"},
}
RESPONSE = {
    "name": "response",
    "in": "path",
    "required": True,
    "description": "the id of the response",
    "schema": {"type": "string", "minLength": 1},
}

Found = Mapping[Any, dict[str, Any]]


def describe(found: Found) -> dict[str, dict[str, object]]:
    """By path, then by method. `found` has the schemas of `BODIES` and of a problem."""
    return {
        "/v1/chat/completions": {
            "post": _asked(
                "create_chat_completion",
                "One turn for a list of messages, streamed or not, as OpenAI's clients ask for it.",
                "A client that goes away stops the turn, also before it has begun.",
                found[ChatRequest],
                found,
            )
        },
        "/v1/responses": {
            "post": _asked(
                "create_response",
                "A turn that has a name, can run in the background, and be cancelled by it.",
                "A client that goes away stops the turn, unless it runs in the background.",
                found[ResponseRequest],
                found,
            )
        },
        "/v1/responses/{response}": {
            "get": _told("get_response", "A response as it stands.", [RESPONSE], found)
        },
        "/v1/responses/{response}/cancel": {
            "post": _told(
                "cancel_response",
                "Stop a response; back when all has settled. Too late is no error.",
                [RESPONSE],
                found,
            )
        },
        "/v1/models": {"get": _told("list_models", "The agent, by its names.", [], found)},
    }


def _asked(
    name: str, summary: str, disconnect: str, body: dict[str, Any], found: Found
) -> dict[str, object]:
    content: dict[str, object] = {
        "application/json": {"schema": ANY},
        "text/event-stream": {},
    }
    return {
        "operationId": name,
        "summary": summary,
        "description": f"{summary}\n\nIf the caller goes away: {disconnect}",
        "parameters": [KEY],
        "requestBody": {"required": True, "content": {"application/json": {"schema": body}}},
        "responses": {
            "200": {"description": "The answer, in OpenAI's form.", "content": content},
            **_errors((*ALWAYS, *WITH_BODY), found),
        },
    }


def _told(
    name: str, summary: str, parameters: list[dict[str, object]], found: Found
) -> dict[str, object]:
    content = {"application/json": {"schema": ANY}}
    return {
        "operationId": name,
        "summary": summary,
        "description": f"{summary}\n\nIf the caller goes away: Nothing but the waiting ends.",
        "parameters": parameters,
        "responses": {
            "200": {"description": "In OpenAI's form.", "content": content},
            **_errors(ALWAYS, found),
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
        made["application/json"] = {"schema": ERROR}
    if any(code in BEFORE for code in codes):
        made[MEDIA_TYPE] = {"schema": found[ProblemBody]}
    return made
