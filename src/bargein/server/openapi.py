"""Makes the OpenAPI document from the operations themselves, so that nothing is written twice."""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from bargein import __version__
from bargein.contracts.event import Recorded
from bargein.contracts.live import Live
from bargein.server.openai.described import BODIES, describe
from bargein.server.operation import Operation
from bargein.server.problems import MEDIA_TYPE, STATUS, Code, ProblemBody
from bargein.server.shapes import (
    AcceptWanted,
    Answer,
    CallInterrupt,
    Command,
    CutOff,
    DiffWanted,
    DiscardWanted,
    ForkWanted,
    GuestChange,
    GuestWanted,
    Health,
    Hello,
    History,
    InboxChange,
    InterruptBody,
    LeaveWanted,
    NewMessage,
    NewSession,
    NewTicket,
    PlaceWanted,
    Pong,
    PreviewWanted,
    PromptAsked,
    PromptWanted,
    RewindWanted,
    SessionChange,
    SideQuestion,
    SocketReply,
    StageWanted,
    StopAll,
    UndoCallsWanted,
    UndoWanted,
    WatchBegun,
)

REFERENCE = "#/components/schemas/{name}"

# Problems that any operation may answer with.
ALWAYS = (
    Code.BAD_REQUEST,
    Code.UNAUTHENTICATED,
    Code.FORBIDDEN,
    Code.WRONG_ORIGIN,
    Code.WRONG_HOST,
    Code.TOO_LATE,
    Code.TOO_MANY,
    Code.SHUTTING_DOWN,
    Code.UNAVAILABLE,
    Code.UNREADABLE,
)
WITH_BODY = (Code.BAD_JSON, Code.TOO_SLOW, Code.TOO_LARGE, Code.WRONG_TYPE)

TAGS = {
    "sessions": "Make, find, read, share and delete sessions.",
    "talking": "Send messages to a session, stop what it does, change what waits.",
    "events": "The events of a session, as they happen.",
    "openai": "For programs made for OpenAI: chat completions, responses, models.",
    "admin": "Who the caller is; for admins, what runs and who did what.",
    "health": "Whether the server answers and takes work.",
}

ON_SOCKETS = (Command, SocketReply, Pong, Hello, WatchBegun)

EXAMPLES: dict[type[msgspec.Struct], object] = {
    SideQuestion: {"text": "Which files have you changed so far?"},
    NewSession: {"title": "Holidays"},
    GuestWanted: {"name": "Anna"},
    GuestChange: {"approves": True},
    UndoWanted: {"overrule": ["notes.txt"]},
    PreviewWanted: {"turn": "t3"},
    UndoCallsWanted: {"calls": ["t3_1_1"]},
    RewindWanted: {"turn": "t3", "what": "files"},
    DiffWanted: {"turn": "t4"},
    AcceptWanted: {"paths": ["src"], "overrule": ["src/main.py"]},
    DiscardWanted: {"paths": ["notes.txt"]},
    StageWanted: {"on": True},
    ForkWanted: {"turn": "t3"},
    PlaceWanted: {"workspace": "/home/alice/project", "model": "openai:gpt-5-mini"},
    PromptWanted: {"name": "mcp__git__review", "words": "src"},
    LeaveWanted: {"connected": True},
    NewTicket: {"after": 12},
    SessionChange: {"members": {"bob": "write"}},
    NewMessage: {"text": "Only to ten", "mode": "interrupt"},
    InboxChange: {"text": "To twenty"},
    PromptAsked: {"words": "src tone=kind"},
    InterruptBody: {"scope": "turn"},
    CallInterrupt: {"reason": "it takes too long"},
    Answer: {"text": "allow"},
    History: {"messages": [{"type": "user", "content": [{"type": "text", "text": "hello"}]}]},
    StopAll: {"reason": "maintenance"},
}

KEY_SUMMARY = "a repeated key takes effect once; its answer has Idempotency-Replayed"

EVENTS = (
    "A stream of `data:` lines, each one JSON object: events of the log, with their place as the "
    "id of the line, and what happens in between. With Last-Event-ID or `after` it begins "
    "with all of the log since that event: nothing missed, nothing twice, even after a restart."
)


def document(operations: tuple[Operation, ...]) -> bytes:
    """Returns the document as JSON."""
    bodies = [each.body for each in operations if each.body is not None]
    replies = [kind for each in operations for kind in each.replies.values() if kind is not None]
    more = [*BODIES, ProblemBody, Health, *ON_SOCKETS, CutOff, Recorded, Live]
    types = list(dict.fromkeys([*bodies, *replies, *more]))
    schemas, components = msgspec.json.schema_components(types, ref_template=REFERENCE)
    found = dict(zip(types, schemas, strict=True))
    paths: dict[str, dict[str, object]] = {}
    for each in operations:
        paths.setdefault(f"/v1{each.path}", {})[each.method.lower()] = _operation(each, found)
    paths["/v1/sessions/{session}/events"] = {"get": _events(found)}
    paths.update(describe(found))
    paths["/healthz"] = {"get": _health("health", "The process answers.", found, ())}
    busy = (Code.SHUTTING_DOWN, Code.UNAVAILABLE)
    paths["/readyz"] = {"get": _health("readiness", "It takes new work.", found, busy)}
    return msgspec.json.encode(
        {
            "openapi": "3.1.0",
            "info": {
                "title": "Bargein",
                "version": __version__,
                "description": "Agents that can be interrupted at any moment. "
                "A reader or a caller that goes away stops nothing, unless it says so.",
            },
            "tags": [{"name": name, "description": words} for name, words in TAGS.items()],
            "paths": paths,
            "components": {
                "schemas": components,
                "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            },
            "security": [{"token": []}],
        }
    )


Found = Mapping[Any, dict[str, Any]]


def _operation(operation: Operation, found: Found) -> dict[str, object]:
    made: dict[str, object] = {
        "operationId": operation.name,
        "tags": [_tag(operation.path)],
        "summary": operation.summary,
        "description": f"{operation.summary}\n\nIf the caller goes away: {operation.disconnect}",
        "parameters": [
            *(_path_parameter(name) for name in operation.names),
            *(_parameter(each.name, "query", each.summary, each.kind) for each in operation.query),
            *(_key() if operation.takes_key else ()),
        ],
        "responses": _responses(operation, found),
    }
    if operation.body is not None:
        content: dict[str, object] = {"schema": found[operation.body]}
        if operation.body in EXAMPLES:
            content["example"] = EXAMPLES[operation.body]
        made["requestBody"] = {"required": False, "content": {"application/json": content}}
    return made


def _tag(path: str) -> str:
    words = path.strip("/").split("/")
    if words[0] in ("sessions", "search"):
        about_sessions = words[2:3] in ([], ["turns"], ["transcript"])
        return "sessions" if about_sessions else "talking"
    return "admin"


def _responses(operation: Operation, found: Found) -> dict[str, object]:
    made: dict[str, object] = {}
    for status, kind in operation.replies.items():
        made[str(status)] = {"description": "Done."}
        if kind is not None:
            content = {"application/json": {"schema": found[kind]}}
            made[str(status)] = {"description": _first_line(kind), "content": content}
    codes = [*ALWAYS, *operation.problems]
    if operation.body is not None:
        codes += WITH_BODY
    if operation.takes_key:
        codes.append(Code.ID_REUSED)
    return made | _problems(codes, found)


def _problems(codes: Iterable[Code], found: Found) -> dict[str, object]:
    by_status: dict[int, list[Code]] = {}
    for code in dict.fromkeys(codes):
        by_status.setdefault(STATUS[code][0], []).append(code)
    return {
        str(status): {
            "description": "; ".join(f"`{code}`: {STATUS[code][1]}" for code in those),
            "content": {MEDIA_TYPE: {"schema": found[ProblemBody]}},
        }
        for status, those in sorted(by_status.items())
    }


def _events(found: Found) -> dict[str, object]:
    shown = {"anyOf": [found[Recorded], found[Live], found[CutOff]]}
    return {
        "operationId": "watch_events",
        "tags": ["events"],
        "summary": "The events of a session as they happen.",
        "description": f"{EVENTS}\n\nIf the reader goes away: Nothing stops.",
        "parameters": [
            _path_parameter("session"),
            _parameter("after", "query", "begin after this event; 0 for the whole log", "integer"),
            _parameter("Last-Event-ID", "header", "the same; it wins over `after`", "integer"),
        ],
        "responses": {
            "200": {
                "description": "The stream.",
                "content": {"text/event-stream": {"schema": {"type": "string"}, "x-data": shown}},
            },
            **_problems((*ALWAYS, Code.NOT_FOUND), found),
        },
    }


def _health(name: str, summary: str, found: Found, codes: tuple[Code, ...]) -> dict[str, object]:
    content = {"application/json": {"schema": found[Health]}}
    return {
        "operationId": name,
        "tags": ["health"],
        "summary": summary,
        "security": [],
        "responses": {
            "200": {"description": "It does.", "content": content},
            **_problems((Code.WRONG_HOST, Code.WRONG_ORIGIN, *codes), found),
        },
    }


def _path_parameter(name: str) -> dict[str, object]:
    return {**_parameter(name, "path", f"the id of the {name}", "string"), "required": True}


def _parameter(name: str, place: str, summary: str, kind: str) -> dict[str, object]:
    schema: dict[str, object] = {"type": kind}
    if kind == "integer":
        schema["minimum"] = 0
    if kind == "string":
        schema["minLength"] = 1
    return {"name": name, "in": place, "description": summary, "schema": schema}


def _key() -> tuple[dict[str, object], ...]:
    made = _parameter("Idempotency-Key", "header", KEY_SUMMARY, "string")
    made["schema"] = {"type": "string", "pattern": "^[!-~]{1,200}$"}
    return (made,)


def _first_line(kind: type) -> str:
    words = (kind.__doc__ or "").strip().partition("\n")[0]
    return words or kind.__name__
