"""`/v1/responses`: a turn that has a name, can run in the background, and can be cancelled by it.

The id of a response is that of its session and its message. What it says is read from the log of
the session, so it is the same after a restart. In the foreground a client that goes away stops the
turn; in the background nothing but a cancel does.
"""

from functools import partial

import msgspec
from starlette.requests import Request

from bargein.cancel import Cause
from bargein.contracts.event import MessageAccepted, TurnOutcome
from bargein.errors import BargeinError
from bargein.server.access import Principal, Right
from bargein.server.gateway import Opened
from bargein.server.openai.asking import Endpoint, Outlet, key_of
from bargein.server.openai.following import Followed, follow, take_back
from bargein.server.openai.history import of_response
from bargein.server.openai.shapes import ResponseRequest
from bargein.server.operation import decode
from bargein.server.problems import Code, Problem, not_found
from bargein.server.sessions import unmake
from bargein.session.session import Session

_decoder = msgspec.json.Decoder(ResponseRequest)

_STATUS = {
    TurnOutcome.COMPLETED: "completed",
    TurnOutcome.STOPPED: "cancelled",
    TurnOutcome.FAILED: "failed",
    TurnOutcome.CRASHED: "failed",
}


def response_id(session: Session, message: str) -> str:
    return f"resp_{session.id}.{message}"


class Responses(Endpoint):
    """`POST /v1/responses`."""

    name = "create_response"

    async def answer(self, request: Request, principal: Principal, outlet: Outlet) -> None:
        self.gateway.refuse_if_draining()
        body = decode(_decoder, await self.edge.body(request, principal.name))
        if body.tools:
            raise Problem(
                Code.BAD_REQUEST,
                "tools: the agent behind this server runs tools of its own; leave them out",
            )
        model = self.check_model(body.model)
        conversation = of_response(body.input, body.instructions)
        new = False
        if body.previous_response_id is None:
            opened, new = await self.make_session(request, principal, body)
        else:
            if conversation.history or body.instructions:
                raise Problem(
                    Code.BAD_REQUEST,
                    "with previous_response_id only the user's next message can come: the rest is "
                    "known here already",
                )
            found = body.previous_response_id
            opened, _ = await _find(self, principal, found, "write")
        session, key = opened.session, key_of(request)
        outlet.session = session.id
        try:
            if body.background and not body.stream:
                sent = await self.hand_over(session, principal, conversation, key)
                outlet.turn_begun = True
                await outlet.json(await view(session, sent.message, model, background=True))
                return
            give = partial(_give, outlet, session, body, model)
            stops = not body.background
            await self.converse(request, principal, outlet, opened, conversation, give, stops=stops)
        except BargeinError:
            if new and key is None and not outlet.turn_begun:
                await unmake(self.gateway, session, by=principal.name)
            raise


class OneResponse(Endpoint):
    """`GET /v1/responses/{id}`."""

    name = "get_response"
    changes = False

    async def answer(self, request: Request, principal: Principal, outlet: Outlet) -> None:
        asked = request.path_params["response"]
        opened, message = await _find(self, principal, asked, "read")
        session = opened.session
        outlet.session = session.id
        await outlet.json(await view(session, message, self.check_model(""), background=True))


class CancelResponse(Endpoint):
    """`POST /v1/responses/{id}/cancel`: back when all has settled; too late is no error."""

    name = "cancel_response"

    async def answer(self, request: Request, principal: Principal, outlet: Outlet) -> None:
        asked = request.path_params["response"]
        opened, message = await _find(self, principal, asked, "write")
        session = opened.session
        outlet.session = session.id
        await take_back(session, message, principal.name, Cause.USER_STOP)
        await outlet.json(await view(session, message, self.check_model(""), background=True))


async def _find(
    endpoint: Endpoint, principal: Principal, asked: str, need: Right
) -> tuple[Opened, str]:
    session_id, _, message = asked.removeprefix("resp_").rpartition(".")
    if not asked.startswith("resp_") or not session_id:
        raise not_found(f"response {asked!r}")
    opened = await endpoint.gateway.open(principal, session_id, need)
    if await _accepted_at(opened.session, message) is None:
        raise not_found(f"response {asked!r}")
    return opened, message


async def _accepted_at(session: Session, message: str) -> float | None:
    for recorded in await session.events():
        event = recorded.event
        if isinstance(event, MessageAccepted) and event.message.id == message:
            return recorded.at
    return None


async def _give(
    outlet: Outlet, session: Session, body: ResponseRequest, model: str, message: str, after: int
) -> None:
    background = bool(body.background)
    if not body.stream:
        await follow(session, message, after, _say_nothing)
        await outlet.json(await view(session, message, model, background=background))
        return
    stream = _Stream(outlet, response_id(session, message))
    begun = await view(session, message, model, background=background)
    await stream.event("response.created", response={**begun, "status": "in_progress"})
    await stream.event("response.in_progress", response={**begun, "status": "in_progress"})
    await stream.begin()
    followed = await follow(session, message, after, stream.say)
    await stream.finish(followed.text)
    over = await view(session, message, model, background=background)
    last = {"completed": "completed", "failed": "failed"}.get(str(over["status"]), "incomplete")
    await stream.event(f"response.{last}", response=over)
    await outlet.end()


async def _say_nothing(text: str) -> None:
    pass


class _Stream:
    def __init__(self, outlet: Outlet, response: str) -> None:
        self._outlet = outlet
        self._place = {"item_id": f"msg_{response}", "output_index": 0, "content_index": 0}
        self._number = 0

    async def event(self, kind: str, **body: object) -> None:
        await self._outlet.event({"type": kind, "sequence_number": self._number, **body}, name=kind)
        self._number += 1

    async def begin(self) -> None:
        item = _item(str(self._place["item_id"]), "", "in_progress")
        await self.event("response.output_item.added", output_index=0, item={**item, "content": []})
        await self.event("response.content_part.added", **self._place, part=_part(""))

    async def say(self, text: str) -> None:
        await self.event("response.output_text.delta", **self._place, delta=text, logprobs=[])

    async def finish(self, text: str) -> None:
        await self.event("response.output_text.done", **self._place, text=text, logprobs=[])
        await self.event("response.content_part.done", **self._place, part=_part(text))
        item = _item(str(self._place["item_id"]), text, "completed")
        await self.event("response.output_item.done", output_index=0, item=item)


async def view(
    session: Session, message: str, model: str, *, background: bool
) -> dict[str, object]:
    """The response as its session's log tells it."""
    followed, accepted_at, before = Followed(message), 0.0, None
    for recorded in await session.events():
        event = recorded.event
        if isinstance(event, MessageAccepted):
            if event.message.id == message:
                accepted_at = recorded.at
            elif not accepted_at:
                before = event.message.id
        followed.add(recorded)
    name = response_id(session, message)
    error = followed.settled.error if followed.settled is not None else ""
    usage = followed.usage
    return {
        "id": name,
        "object": "response",
        "created_at": int(accepted_at),
        "status": _status(followed),
        "background": background,
        "error": {"code": "server_error", "message": error} if error else None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {"session": session.id},
        "model": model,
        "output": [_item(f"msg_{name}", followed.text, "completed")] if followed.text else [],
        "parallel_tool_calls": True,
        "previous_response_id": response_id(session, before) if before is not None else None,
        "store": True,
        "temperature": None,
        "text": {"format": {"type": "text"}},
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
    if followed.outcome is not None:
        return _STATUS[followed.outcome]
    return "in_progress" if followed.turn is not None else "queued"


def _part(text: str) -> dict[str, object]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _item(item_id: str, text: str, status: str) -> dict[str, object]:
    return {
        "id": item_id,
        "type": "message",
        "role": "assistant",
        "status": status,
        "content": [_part(text)],
    }
