"""`/v1/responses`: turns that have an id, by which clients read and cancel them.

The id of a response is made of its session's and its message's. In the foreground, a client that
goes away stops the turn. In the background only a cancel does, and a reader may come back.

`previous_response_id` goes on in the same session, if that response is its last and the new one is
stored. Otherwise the new one gets its own session, whose history ends with the previous response.
So neither a branch nor a response that is not stored changes the old session.
"""

from functools import partial

import msgspec
from starlette.requests import Request

from bargein.cancel import Cause
from bargein.contracts.event import MessageAccepted, Recorded
from bargein.errors import BargeinError
from bargein.server.access import Principal, Right
from bargein.server.gateway import Opened
from bargein.server.keys import Kept, fingerprint
from bargein.server.openai.asking import OpenAiEndpoint, OpenAiRequest, key_of
from bargein.server.openai.fields import output_of, policy_of, refuse_fields
from bargein.server.openai.following import Followed, Listener, follow, take_back
from bargein.server.openai.history import Conversation, of_response
from bargein.server.openai.outlet import FieldProblem, Outlet
from bargein.server.openai.response_view import (
    ResponseFacts,
    ResponseStream,
    input_items,
    response_id,
    view,
)
from bargein.server.openai.shapes import ResponseRequest
from bargein.server.operation import decode_soon
from bargein.server.problems import Code, Problem
from bargein.server.sessions import unmake
from bargein.server.validation_errors import no_parameter
from bargein.session.session import Session
from bargein.session.transcript import Transcript

_decoder = msgspec.json.Decoder(ResponseRequest)

STREAM_PARAMETERS = ("stream", "starting_after", "include", "include[]", "include_obfuscation")
LIST_PARAMETERS = ("limit", "order", "after", "include", "include[]")
ITEMS_DEFAULT, ITEMS_MAX = 20, 100


class Responses(OpenAiEndpoint):
    """`POST /v1/responses`."""

    name = "create_response"

    async def answer(self, request: Request, principal: Principal, outlet: Outlet) -> None:
        self.gateway.refuse_if_draining()
        body = await decode_soon(_decoder, await self.edge.body(request, principal.name))
        refuse_fields(body)
        passes = body.store is False
        if passes and body.background:
            raise FieldProblem(
                Code.BAD_REQUEST,
                "store",
                "a response in the background is fetched by its id, so it must be stored",
            )
        model = self.check_model(body.model)
        ask = OpenAiRequest(
            of_response(body.input, body.instructions),
            output_of(body.text.format if body.text is not None else None, "text.format"),
            policy_of(body.metadata, self.gateway.settings.openai_questions),
        )
        opened, ask, new = await self._place(request, principal, body, ask)
        session, key = opened.session, key_of(request)
        outlet.session = session.id
        previous = body.previous_response_id
        facts = ResponseFacts(model, bool(body.background), not passes, previous)
        try:
            if body.background and not body.stream:
                sent = await self.hand_over(session, principal, ask, key, outlet)
                await outlet.json(await view(session, sent.message, facts))
                return
            give = partial(_give, outlet, session, facts, stream=bool(body.stream))
            background = bool(body.background)
            await self.converse(
                request,
                principal,
                outlet,
                opened,
                ask,
                give,
                stops=not background,
                passes=passes,
            )
        except BargeinError:
            if new and key is None and not outlet.turn_begun and not passes:
                await unmake(self.gateway, session, by=principal.name)
            raise

    async def _place(
        self, request: Request, principal: Principal, body: ResponseRequest, ask: OpenAiRequest
    ) -> tuple[Opened, OpenAiRequest, bool]:
        """Returns the session of the new message, the message with its history, and whether the
        session is new."""
        previous, passes = body.previous_response_id, body.store is False
        if previous is None:
            opened, new = await self.make_session(request, principal, body, passes=passes)
            return opened, ask, new
        if ask.conversation.history or body.instructions:
            raise Problem(
                Code.BAD_REQUEST,
                "with previous_response_id only the user's next message can come: the rest is "
                "known here already",
            )
        opened, message, log = await _find(self, principal, previous, "read")
        accepted = [e.event.message for e in log if isinstance(e.event, MessageAccepted)]
        is_last = accepted[-1].id == message
        key = key_of(request)
        came = (principal.name, key) in [(each.sender, each.client_id) for each in accepted]
        if not passes and (is_last or (key is not None and came)):
            opened = await self.gateway.open(principal, opened.session.id, "write")
            return opened, ask, False
        begun = _up_to(log, opened.session.id, message, ask.conversation)
        opened, new = await self.make_session(request, principal, body, passes=passes)
        return opened, msgspec.structs.replace(ask, conversation=begun), new


def _up_to(log: list[Recorded], session: str, message: str, said: Conversation) -> Conversation:
    """Returns a conversation whose history is everything up to the answer to that message."""
    followed = Followed(session, message)
    for place, recorded in enumerate(log, 1):
        followed.add(recorded)
        if followed.settled is not None:
            transcript = Transcript.of(log[:place])
            return Conversation(transcript.instructions, transcript.messages(), said.said)
    name = response_id(session, message)
    raise Problem(
        Code.BAD_REQUEST, f"previous_response_id: {name} has not ended; wait for it or cancel it"
    )


class OneResponse(OpenAiEndpoint):
    """`GET /v1/responses/{id}`; with `?stream=true` its events, from `starting_after` on."""

    name = "get_response"
    changes = False

    async def answer(self, request: Request, principal: Principal, outlet: Outlet) -> None:
        _refuse_unknown(request, STREAM_PARAMETERS)
        after = _number(request, "starting_after", -1)
        opened, message, _ = await _find(self, principal, _asked(request), "read")
        session, facts = opened.session, ResponseFacts(self.check_model(""))
        outlet.session = session.id
        if request.query_params.get("stream", "false").lower() != "true":
            await outlet.json(await view(session, message, facts))
            return
        listener = Listener(principal, opened.root)
        give = partial(_give, outlet, session, facts, message, 0, stream=True, starting_after=after)
        with self.gateway.stream(listener, outlet.tick_for(listener)):
            await listener.hear(request.receive, give)
        self.end_of(listener, outlet)


class InputItems(OpenAiEndpoint):
    """`GET /v1/responses/{id}/input_items`."""

    name = "list_input_items"
    changes = False

    async def answer(self, request: Request, principal: Principal, outlet: Outlet) -> None:
        _refuse_unknown(request, LIST_PARAMETERS)
        limit = min(_number(request, "limit", ITEMS_DEFAULT), ITEMS_MAX)
        opened, message, log = await _find(self, principal, _asked(request), "read")
        outlet.session = opened.session.id
        items = input_items(log, opened.session.id, message)
        if request.query_params.get("order", "desc") != "asc":
            items.reverse()
        ids = [item["id"] for item in items]
        after = request.query_params.get("after")
        begin = ids.index(after) + 1 if after in ids else 0
        page = items[begin : begin + limit]
        await outlet.json(
            {
                "object": "list",
                "data": page,
                "first_id": page[0]["id"] if page else None,
                "last_id": page[-1]["id"] if page else None,
                "has_more": begin + limit < len(items),
            }
        )


class CancelResponse(OpenAiEndpoint):
    """`POST /v1/responses/{id}/cancel`: answers when everything has settled. Too late is no
    error."""

    name = "cancel_response"

    async def answer(self, request: Request, principal: Principal, outlet: Outlet) -> None:
        asked, key = _asked(request), key_of(request)
        opened, message, _ = await _find(self, principal, asked, "write")
        session = opened.session
        outlet.session = session.id

        async def cancel() -> Kept:
            await take_back(session, message, principal.name, Cause.USER_STOP)
            shown = await view(session, message, ResponseFacts(self.check_model("")))
            return Kept(200, msgspec.json.encode(shown))

        if key is None:
            kept = await cancel()
        else:
            print_ = fingerprint(self.name, asked, b"")
            kept = await self.gateway.keys.once(principal.name, key, print_, cancel)
        outlet.replayed = kept.replayed
        await outlet.json(kept.body)


class DeleteResponse(OpenAiEndpoint):
    """`DELETE /v1/responses/{id}`: deletes it with its session, which must have no other
    response."""

    name = "delete_response"

    async def answer(self, request: Request, principal: Principal, outlet: Outlet) -> None:
        self.gateway.refuse_if_draining()
        asked = _asked(request)
        opened, message, log = await _find(self, principal, asked, "own")
        session = opened.session
        outlet.session = session.id
        accepted = [e.event.message for e in log if isinstance(e.event, MessageAccepted)]
        if [each.id for each in accepted] != [message]:
            raise Problem(
                Code.BAD_REQUEST,
                f"{asked} is one of {len(accepted)} messages of its session, which go together; "
                f"delete them all with DELETE /v1/sessions/{session.id}",
            )
        await unmake(self.gateway, session, by=principal.name)
        await outlet.json({"id": asked, "object": "response", "deleted": True})


async def _find(
    endpoint: OpenAiEndpoint, principal: Principal, asked: str, need: Right
) -> tuple[Opened, str, list[Recorded]]:
    """Returns the session of a response, its message and the session's log."""
    session_id, _, message = asked.removeprefix("resp_").rpartition(".")
    missing = Problem(
        Code.NOT_FOUND,
        f"there is no response {asked[:200]!r}, or it is not yours to see; one with store: false "
        "is not kept",
    )
    if not asked.startswith("resp_") or not session_id or session_id in endpoint.passing:
        raise missing
    try:
        opened = await endpoint.gateway.open(principal, session_id, need)
    except Problem as problem:
        raise missing if problem.code is Code.NOT_FOUND else problem from None
    log = await opened.session.events()
    accepted = [e.event.message.id for e in log if isinstance(e.event, MessageAccepted)]
    if message not in accepted:
        raise missing
    return opened, message, log


async def _give(
    outlet: Outlet,
    session: Session,
    facts: ResponseFacts,
    message: str,
    after: int,
    *,
    stream: bool,
    starting_after: int = -1,
) -> None:
    waits = bool(facts.background)
    if not stream:
        followed = await follow(session, message, after, waits_if_held=waits)
        if followed.unanswered is not None and followed.problem is not None:
            raise followed.problem
        await outlet.json(await view(session, message, facts))
        return
    events = ResponseStream(outlet, response_id(session.id, message), starting_after)
    await events.begin(await view(session, message, facts))
    followed = await follow(session, message, after, events.say, waits_if_held=waits)
    await events.finish(followed.text, await view(session, message, facts))


def _asked(request: Request) -> str:
    name: str = request.path_params["response"]
    return name


def _refuse_unknown(request: Request, known: tuple[str, ...]) -> None:
    for name in request.query_params:
        if name not in known:
            raise Problem(Code.BAD_REQUEST, no_parameter(name, known))


def _number(request: Request, name: str, default: int) -> int:
    text = request.query_params.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 16):
        raise FieldProblem(Code.BAD_REQUEST, name, "give a whole number", value=text)
    return int(text)
