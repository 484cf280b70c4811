"""A response as its session's log tells it: whole, as a stream of events, and what it was asked.

Everything is computed from the log, so it is the same after a restart. So are the numbers of the
events of a stream: that of a piece of text is the place in the answer where the piece ends. A
reader that was cut off says the last number it has seen and gets the rest: no word twice, none
missing. Numbers grow, and have gaps.
"""

import base64
from collections.abc import Iterable, Sequence

import msgspec

from bargein.contracts.event import Recorded, TurnOutcome
from bargein.contracts.model import (
    AssistantMessage,
    Image,
    ModelMessage,
    Text,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from bargein.contracts.output import ANY_OBJECT, Output
from bargein.server.openai.following import Followed, agents_output
from bargein.server.openai.outlet import Outlet
from bargein.session.session import Session
from bargein.view import Picture

Json = dict[str, object]

HEAD_EVENTS = 4
"""Before the first piece of text; so a piece that ends at the nth character has number n + 3."""

_STATUS = {
    TurnOutcome.COMPLETED: "completed",
    TurnOutcome.STOPPED: "cancelled",
    TurnOutcome.FAILED: "failed",
    TurnOutcome.CRASHED: "failed",
}


def response_id(session: str, message: str) -> str:
    return f"resp_{session}.{message}"


class Told(msgspec.Struct, frozen=True):
    """What is said of a response and is not in the log: None where nobody knows any more."""

    model: str
    background: bool | None = None
    store: bool = True
    previous: str | None = None


async def view(session: Session, message: str, told: Told) -> Json:
    followed = Followed(session.id, message, output=agents_output(session))
    for recorded in await session.events():
        followed.add(recorded)
    messages = list(followed.picture.messages)
    place = messages.index(message) if message in messages else 0
    before = response_id(session.id, messages[place - 1]) if place else None
    return _view(followed, told, told.previous or before)


def _view(followed: Followed, told: Told, previous: str | None) -> Json:
    name = response_id(followed.session, followed.message)
    problem = followed.problem
    usage = followed.usage
    return {
        "id": name,
        "object": "response",
        "created_at": int(followed.known.at if followed.known is not None else 0),
        "status": _status(followed),
        "background": told.background,
        "error": None if problem is None else {"code": _code(followed), "message": problem.detail},
        "incomplete_details": None,
        "instructions": None,
        "metadata": {"session": followed.session},
        "model": told.model,
        "output": [item_of(f"msg_{name}", followed.text)] if followed.text else [],
        "parallel_tool_calls": True,
        "previous_response_id": previous,
        "store": told.store,
        "temperature": None,
        "text": {"format": _format(followed.output)},
        "tool_choice": "auto",
        "tools": [],
        "top_p": None,
        "truncation": "disabled",
        "usage": {
            "input_tokens": usage.input_tokens,
            "input_tokens_details": {"cached_tokens": usage.cached_input_tokens},
            "output_tokens": usage.output_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": usage.input_tokens + usage.output_tokens,
        },
    }


def _status(followed: Followed) -> str:
    if followed.withdrawn:
        return "cancelled"
    if followed.unanswered is not None and followed.outcome is not None:
        return "failed"
    if followed.outcome is not None:
        return _STATUS[followed.outcome]
    return "in_progress" if followed.turn is not None else "queued"


def _code(followed: Followed) -> str:
    # OpenAI has a fixed list of codes, which has no other for a turn that failed.
    return "unanswered" if followed.unanswered is not None else "server_error"


def _format(output: Output | None) -> Json:
    if output is None:
        return {"type": "text"}
    if output.schema == ANY_OBJECT:
        return {"type": "json_object"}
    schema = msgspec.json.decode(output.schema)
    return {"type": "json_schema", "name": output.name, "schema": schema, "strict": True}


# --- as a stream


class ResponseStream:
    """Sends the events whose number is above `after`."""

    def __init__(self, outlet: Outlet, response: str, after: int = -1) -> None:
        self._outlet = outlet
        self._place = {"item_id": f"msg_{response}", "output_index": 0, "content_index": 0}
        self._after = after
        self._said = 0

    async def begin(self, begun: Json) -> None:
        bare = {**begun, "status": "in_progress", "output": [], "error": None, "usage": None}
        item = {**item_of(str(self._place["item_id"]), "", "in_progress"), "content": []}
        await self._event(0, "response.created", response=bare)
        await self._event(1, "response.in_progress", response=bare)
        await self._event(2, "response.output_item.added", output_index=0, item=item)
        await self._event(3, "response.content_part.added", **self._place, part=_part(""))

    async def say(self, text: str) -> None:
        seen = max(0, self._after + 1 - HEAD_EVENTS - self._said)
        self._said += len(text)
        if seen < len(text):
            number = HEAD_EVENTS - 1 + self._said
            kind = "response.output_text.delta"
            await self._event(number, kind, **self._place, delta=text[seen:], logprobs=[])

    async def finish(self, text: str, over: Json) -> None:
        number = HEAD_EVENTS + self._said
        kind = {"completed": "completed", "failed": "failed"}.get(str(over["status"]), "incomplete")
        item = item_of(str(self._place["item_id"]), text)
        whole = {"text": text, "logprobs": list[object]()}
        await self._event(number, "response.output_text.done", **self._place, **whole)
        part = _part(text)
        await self._event(number + 1, "response.content_part.done", **self._place, part=part)
        await self._event(number + 2, "response.output_item.done", output_index=0, item=item)
        await self._event(number + 3, f"response.{kind}", response=over)
        await self._outlet.end()

    async def _event(self, number: int, kind: str, **body: object) -> None:
        if number > self._after:
            event = {"type": kind, "sequence_number": number, **body}
            await self._outlet.event(event, name=kind)


def _part(text: str) -> Json:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def item_of(item_id: str, text: str, status: str = "completed") -> Json:
    return {
        "id": item_id,
        "type": "message",
        "role": "assistant",
        "status": status,
        "content": [_part(text)],
    }


# --- what it was asked


def input_items(log: Sequence[Recorded], session: str, message: str) -> list[Json]:
    """The message and, if the session began with it, the history that came along."""
    picture = Picture.of(log, session)
    asked = picture.messages.get(message)
    if asked is None:
        return []
    imported = picture.imported if message == next(iter(picture.messages)) else None
    history = imported.messages if imported is not None else ()
    said = UserMessage(asked.message.content)
    items = [item for each in (*history, said) for item in _items(each)]
    name = response_id(session, message)
    return [{"id": f"msg_{name}_{n}", **item} for n, item in enumerate(items)]


def _items(message: ModelMessage) -> Iterable[Json]:
    match message:
        case UserMessage(content=content):
            pieces = [_input_piece(piece) for piece in content]
            yield {"type": "message", "role": "user", "status": "completed", "content": pieces}
        case AssistantMessage(content=content):
            words = [_part(part.text) for part in content if isinstance(part, Text)]
            if words:
                said = {"type": "message", "role": "assistant", "status": "completed"}
                yield {**said, "content": words}
            for part in content:
                if isinstance(part, ToolCall):
                    call = {"call_id": part.id, "name": part.name, "arguments": part.arguments}
                    yield {"type": "function_call", "status": "completed", **call}
        case ToolMessage(results=results):
            for result in results:
                texts = [part.text for part in result.content if isinstance(part, Text)]
                given = {"call_id": result.call_id, "output": "\n".join(texts)}
                yield {"type": "function_call_output", "status": "completed", **given}


def _input_piece(piece: Text | Image) -> Json:
    if isinstance(piece, Text):
        return {"type": "input_text", "text": piece.text}
    data = base64.b64encode(piece.data).decode("ascii")
    url = f"data:{piece.media_type};base64,{data}"
    return {"type": "input_image", "image_url": url, "detail": "auto"}
