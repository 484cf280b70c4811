"""`POST /v1/chat/completions`: one turn for a list of messages, streamed or not.

A client that goes away stops the turn, even before it has begun. Without `metadata.session` and
without an Idempotency-Key, the session is deleted after its answer.

With a `response_format` of JSON a stream sends the answer in one piece: what the model says before
it used its tools is not part of it, and an answer that does not fit the schema is asked for again.
"""

import time
from functools import partial

import msgspec
from starlette.requests import Request

from bargein.contracts.model import Usage
from bargein.server.access import Principal
from bargein.server.openai.asking import OpenAiEndpoint, OpenAiRequest, key_of
from bargein.server.openai.fields import output_of, policy_of, refuse_fields
from bargein.server.openai.following import Followed, follow
from bargein.server.openai.history import Conversation, of_chat
from bargein.server.openai.outlet import FieldProblem, Outlet
from bargein.server.openai.shapes import ChatRequest
from bargein.server.operation import decode_soon
from bargein.server.problems import Code
from bargein.session.session import Session

_decoder = msgspec.json.Decoder(ChatRequest)


class ChatCompletions(OpenAiEndpoint):
    name = "create_chat_completion"

    async def answer(self, request: Request, principal: Principal, outlet: Outlet) -> None:
        self.gateway.refuse_if_draining()
        body = await decode_soon(_decoder, await self.edge.body(request, principal.name))
        refuse_fields(body)
        if body.store:
            raise FieldProblem(
                Code.BAD_REQUEST,
                "store",
                "completions are not stored here; use /v1/responses, or name a session in metadata",
            )
        model = self.check_model(body.model)
        ask = OpenAiRequest(
            of_chat(body.messages),
            output_of(body.response_format, "response_format"),
            policy_of(body.metadata, self.gateway.settings.openai_questions),
        )
        named = (body.metadata or {}).get("session")
        passes = named is None and key_of(request) is None
        if named is not None:
            opened = await self.gateway.open(principal, named, "write")
            only_said = Conversation("", (), ask.conversation.said)
            ask = msgspec.structs.replace(ask, conversation=only_said)
        else:
            opened, _ = await self.make_session(request, principal, body, passes=passes)
        outlet.session = opened.session.id
        give = partial(self._give, outlet, body, model, opened.session)
        await self.converse(request, principal, outlet, opened, ask, give, passes=passes)

    async def _give(
        self,
        outlet: Outlet,
        body: ChatRequest,
        model: str,
        session: Session,
        message: str,
        after: int,
    ) -> None:
        answer = _Answer(outlet, body, model, f"chatcmpl-{session.id}.{message}")
        await answer.give(session, message, after)


class _Answer:
    """Sends one completion, whole or as chunks."""

    def __init__(self, outlet: Outlet, body: ChatRequest, model: str, completion_id: str) -> None:
        self._outlet = outlet
        self._stream = bool(body.stream)
        self._usage = body.stream_options is not None and body.stream_options.include_usage
        self._model = model
        self._id = completion_id
        self._created = int(time.time())

    async def give(self, session: Session, message: str, after: int) -> None:
        if self._stream:
            await self._chunk({"role": "assistant", "content": ""})
        say = self._say if self._stream else None
        followed = await follow(session, message, after, say, waits_if_held=False)
        if followed.problem is not None:
            raise followed.problem
        if not self._stream:
            await self._outlet.json(self._whole(session, followed))
            return
        await self._chunk({}, finish="stop", bargein=_own_fields(session, followed))
        if self._usage:
            await self._outlet.event({**self._head(), "choices": [], "usage": usage_of(followed)})
        await self._outlet.event(b"[DONE]")
        await self._outlet.end()

    async def _say(self, text: str) -> None:
        await self._chunk({"content": text})

    def _head(self, kind: str = "chat.completion.chunk") -> dict[str, object]:
        return {"id": self._id, "object": kind, "created": self._created, "model": self._model}

    async def _chunk(
        self, delta: dict[str, str], finish: str | None = None, **more: object
    ) -> None:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        await self._outlet.event({**self._head(), "choices": [choice], **more})

    def _whole(self, session: Session, followed: Followed) -> dict[str, object]:
        message = {"role": "assistant", "content": followed.text, "refusal": None}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
        return {
            **self._head("chat.completion"),
            "choices": [choice],
            "usage": usage_of(followed),
            "bargein": _own_fields(session, followed),
        }


def usage_of(followed: Followed) -> dict[str, object]:
    usage: Usage = followed.usage
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.input_tokens + usage.output_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_input_tokens},
    }


def _own_fields(session: Session, followed: Followed) -> dict[str, object]:
    """Returns fields beside OpenAI's. The outcome shows whether somebody stopped the answer."""
    outcome, turn = followed.outcome or "withdrawn", followed.turn
    name = turn.id if turn is not None else None
    return {"session": session.id, "turn": name, "outcome": str(outcome)}
