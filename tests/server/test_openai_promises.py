"""What programs made for OpenAI rely on: questions that never hang, what is stored and what is not,
answers of a given form, streams that can be resumed, replays that say so, and no field dropped."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import msgspec
import openai
import pytest
from openai import AsyncOpenAI
from pydantic import BaseModel

from bargein.contracts.event import (
    QuestionClosed,
    Recorded,
    TurnOutcome,
    TurnSettled,
    TurnStarted,
)
from bargein.contracts.live import AnswerVoid, StepBegan, TextDelta
from bargein.contracts.message import QuestionPolicy
from bargein.contracts.model import Text, ToolMessage
from bargein.contracts.output_type import output_type
from bargein.contracts.receipt import StepKind
from bargein.models.script import Call, Expect, Say, Step, Wait
from bargein.server.gateway import Settings
from bargein.server.limits import GatewayLimits
from bargein.server.openai.fields import IGNORED, REFUSED
from bargein.server.openai.following import Followed
from bargein.server.openai.shapes import ChatRequest, ResponseRequest
from bargein.server.problems import Problem
from bargein.session.agent import REPAIRS_MAX
from bargein.stores.memory import MemoryStore
from bargein.stores.sqlite import SqliteStore
from bargein.tools.ask import ask_tool
from tests.server.stage import START_TOKEN, WITHIN_S, Json, Script, Stage, serving
from tests.server.test_openai import HELLO, HOLD, until_nothing_is_kept, until_nothing_runs
from tests.session.laws import check_log
from tests.session.world import until

pytestmark = pytest.mark.anyio

CHAT = "/v1/chat/completions"
RESPONSES = "/v1/responses"
ASKS: list[Step] = [Say("Hm. "), Call("ask", {"question": "Tea or coffee?"})]
GATEWAY_DOC = Path(__file__).parents[2] / "docs" / "gateway.md"


class Colour(BaseModel):
    colour: str
    shades: list[int]


FITS = '{"colour": "red", "shades": [1, 2]}'


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@asynccontextmanager
async def asking(
    script: Script, home: Path, **more: Any
) -> AsyncIterator[tuple[Stage, AsyncOpenAI]]:
    policy = more.pop("questions", QuestionPolicy.ERROR)
    settings = Settings(openai_questions=policy)
    async with (
        serving(script, home, tools=[ask_tool()], settings=settings, **more) as stage,
        AsyncOpenAI(base_url=f"{stage.url}/v1", api_key=START_TOKEN, max_retries=0) as client,
    ):
        yield stage, client


async def post(
    stage: Stage, path: str, body: Json, key: str | None = None
) -> tuple[aiohttp.ClientResponse, bytes]:
    headers = {"authorization": f"Bearer {START_TOKEN}"}
    if key is not None:
        headers["idempotency-key"] = key
    async with stage.http.post(stage.url + path, json=body, headers=headers) as response:
        return response, await response.read()


def events_in(stream: bytes) -> list[Json]:
    lines = stream.decode().splitlines()
    return [
        msgspec.json.decode(line[6:])
        for line in lines
        if line.startswith("data: ") and line != "data: [DONE]"
    ]


# Streams


@pytest.mark.parametrize("path", [CHAT, RESPONSES])
async def test_a_stream_asks_not_to_be_buffered_and_says_now_and_then_that_it_lives(
    tmp_path: Path, path: str
) -> None:
    limits = GatewayLimits(ping_s=0.02)
    body: Json = {"messages": HELLO} if path == CHAT else {"input": "x"}
    async with asking([HOLD], tmp_path, limits=limits) as (stage, _):
        headers = {"authorization": f"Bearer {START_TOKEN}"}
        async with stage.http.post(
            stage.url + path, json={**body, "stream": True}, headers=headers
        ) as response:
            assert response.headers["x-accel-buffering"] == "no"
            assert response.headers["cache-control"] == "no-store"
            pings = 0
            async for line in response.content:
                pings += line.startswith(b":")
                if pings == 3:
                    stage.model.gate("hold").open()
        assert pings >= 3


async def test_a_client_that_reads_nothing_is_cut_off_and_its_turn_stopped(tmp_path: Path) -> None:
    much: list[Step] = [Say("x" * 100_000)] * 200
    limits = GatewayLimits(send_s=0.3)
    async with asking([[*much, Wait("hold")]], tmp_path, limits=limits) as (stage, _):
        host, port = stage.url.removeprefix("http://").split(":")
        content = msgspec.json.encode({"messages": HELLO, "stream": True})
        head = (
            f"POST {CHAT} HTTP/1.1\r\nhost: {host}:{port}\r\ncontent-type: application/json\r\n"
            f"authorization: Bearer {START_TOKEN}\r\ncontent-length: {len(content)}\r\n\r\n"
        )
        async with await anyio.connect_tcp(host, int(port)) as stream:
            await stream.send(head.encode() + content)
            with anyio.fail_after(WITHIN_S):
                await until(lambda: stage.model.plays)
                await until(lambda: stage.model.plays[0].outcome == "cancelled")
        await until_nothing_is_kept(stage)


# Questions


async def test_a_question_is_an_error_that_names_it(tmp_path: Path) -> None:
    async with asking([ASKS, ASKS], tmp_path) as (stage, client):
        session = (await stage.new_session()).rpartition("/")[2]
        with pytest.raises(openai.UnprocessableEntityError) as caught:
            await client.with_options(max_retries=3).chat.completions.create(
                model="bargein", messages=HELLO, metadata={"session": session}
            )
        assert caught.value.code == "unanswered"
        for word in ("Tea or coffee?", session, "/questions/", "refuse", "openai_questions"):
            assert word in caught.value.message
        log = await stage.engine.store.events(session)
        (closed,) = [e.event for e in log if isinstance(e.event, QuestionClosed)]
        assert closed.answer is None
        (settled,) = [e.event for e in log if isinstance(e.event, TurnSettled)]
        assert settled.outcome is TurnOutcome.STOPPED
        assert settled.receipt is not None
        assert settled.receipt.by == "operator (questions: error)"
        check_log(log)
        assert len(stage.model.plays) == 1


@pytest.mark.parametrize("path", [CHAT, RESPONSES])
async def test_a_stream_ends_with_the_question_too(tmp_path: Path, path: str) -> None:
    body: Json = {"messages": HELLO} if path == CHAT else {"input": "x"}
    async with asking([ASKS], tmp_path) as (stage, _):
        with anyio.fail_after(WITHIN_S):
            response, content = await post(stage, path, {**body, "stream": True})
        assert response.status == 200
        last = events_in(content)[-1]
        error = last["error"] if path == CHAT else last["response"]["error"]
        assert error["code"] == "unanswered"
        assert "Tea or coffee?" in error["message"]
        if path == RESPONSES:
            assert (last["type"], last["response"]["status"]) == ("response.failed", "failed")
        else:
            assert b"[DONE]" not in content
        await until_nothing_runs(stage)


async def test_a_response_in_the_background_fails_with_the_question(tmp_path: Path) -> None:
    async with asking([ASKS], tmp_path) as (stage, client):
        begun = await client.responses.create(model="bargein", input="x", background=True)
        with anyio.fail_after(WITHIN_S):
            await until(lambda: stage.model.plays)
            await until_nothing_runs(stage)
            failed = await client.responses.retrieve(begun.id)
        assert failed.status == "failed"
        assert failed.error is not None
        assert "Tea or coffee?" in failed.error.message


@pytest.mark.parametrize("policy", ["refuse", "allow"])
async def test_a_setting_or_the_request_says_otherwise(tmp_path: Path, policy: str) -> None:
    script: Script = [ASKS, [Expect(result="Nobody can be asked"), Say("Tea.")]]
    setting = QuestionPolicy(policy)
    async with asking(script, tmp_path, questions=setting) as (_, client):
        answer = await client.chat.completions.create(model="bargein", messages=HELLO)
        assert answer.choices[0].message.content == "Hm. \n\nTea."


async def test_a_request_may_wait_or_refuse_but_not_let_all_calls_run(tmp_path: Path) -> None:
    script: Script = [ASKS, [Say("Tea.")], ASKS, [Say("Coffee.")]]
    async with asking(script, tmp_path) as (stage, client):
        refused = await client.chat.completions.create(
            model="bargein", messages=HELLO, metadata={"questions": "refuse"}
        )
        assert refused.choices[0].message.content == "Hm. \n\nTea."
        begun = await client.responses.create(
            model="bargein", input="x", background=True, metadata={"questions": "wait"}
        )
        session = f"/v1/sessions/{(begun.metadata or {})['session']}"
        questions: list[Json] = []
        with anyio.fail_after(WITHIN_S):
            while not questions:
                questions = (await stage.get(session))["questions"]
        await stage.post(f"{session}/questions/{questions[0]['id']}/answer", {"text": "coffee"})
        await until_nothing_runs(stage)
        assert (await client.responses.retrieve(begun.id)).output_text == "Hm. \n\nCoffee."
        for word, error in (
            ("allow", openai.PermissionDeniedError),
            ("maybe", openai.BadRequestError),
        ):
            with pytest.raises(error, match=r"metadata\.questions") as caught:
                await client.chat.completions.create(
                    model="bargein", messages=HELLO, metadata={"questions": word}
                )
            assert caught.value.param == "metadata.questions"
        assert len(stage.model.plays) == 4


async def test_a_message_that_a_stop_holds_back_is_told_so(tmp_path: Path) -> None:
    async with asking([HOLD, [Say("again")]], tmp_path) as (stage, client):
        session = await stage.new_session()
        name = session.rpartition("/")[2]
        await stage.post(f"{session}/messages", {"text": "first"})
        await stage.model.gate("hold").reached()
        errors: list[openai.ConflictError] = []

        async def ask() -> None:
            try:
                await client.chat.completions.create(
                    model="bargein", messages=HELLO, metadata={"session": name}
                )
            except openai.ConflictError as error:
                errors.append(error)

        with anyio.fail_after(WITHIN_S):
            async with anyio.create_task_group() as group:
                group.start_soon(ask)
                await until(lambda: any(s.waiting for s in stage.gateway.now().sessions))
                await stage.post(f"{session}/interrupt")
        assert "was stopped" in errors[0].message
        assert (await stage.get(f"{session}/inbox"))["messages"] == []


@pytest.mark.parametrize("first", [HOLD, ASKS])
async def test_what_ends_for_want_of_a_client_or_an_answer_holds_nobody_up(
    tmp_path: Path, first: list[Step]
) -> None:
    before: list[Step] = [Say("a"), Wait("before")]
    async with asking([before, first, [Say("b")], [Say("c")]], tmp_path) as (stage, client):
        name = (await stage.new_session()).rpartition("/")[2]
        said: list[str | None] = []

        async def ask() -> None:
            answer = await client.chat.completions.create(
                model="bargein", messages=HELLO, metadata={"session": name}
            )
            said.append(answer.choices[0].message.content)

        async def fail(scope: anyio.CancelScope) -> None:
            with scope, suppress(openai.UnprocessableEntityError):
                await ask()

        def waiting() -> int:
            return sum(len(state.waiting) for state in stage.gateway.now().sessions)

        with anyio.fail_after(WITHIN_S):
            async with anyio.create_task_group() as group:
                await stage.post(f"/v1/sessions/{name}/messages", {"text": "go"})
                await stage.model.gate("before").reached()
                scope = anyio.CancelScope()
                group.start_soon(fail, scope)
                await until(lambda: waiting() == 1)
                group.start_soon(ask)
                await until(lambda: waiting() == 2)
                group.start_soon(ask)
                await until(lambda: waiting() == 3)
                stage.model.gate("before").open()
                if first is HOLD:
                    await stage.model.gate("hold").reached()
                    scope.cancel()
        assert said == ["b", "c"]
        check_log(await stage.engine.store.events(name))


# What is stored


@pytest.mark.parametrize("stream", [False, True])
async def test_a_response_that_is_not_stored_is_gone_with_its_answer(
    tmp_path: Path, stream: bool
) -> None:
    async with asking([HOLD, [Say("b")]], tmp_path) as (stage, client):
        found: list[str] = []
        async with anyio.create_task_group() as group:

            async def ask() -> None:
                answer: Any = await client.responses.create(
                    model="bargein", input="x", store=False, stream=stream
                )
                if stream:
                    *_, last = [event async for event in answer]
                    answer = last.response
                assert (answer.output_text, answer.store) == ("One two", False)
                found.append(answer.id)

            group.start_soon(ask)
            await stage.model.gate("hold").reached()
            # It can be seen and stopped while it runs, and not be fetched.
            (running,) = (await stage.get("/v1/sessions"))["sessions"]
            status, answer = await stage.ask("GET", f"{RESPONSES}/resp_{running['id']}.m1")
            assert (status, answer["error"]["code"]) == (404, "not_found")
            stage.model.gate("hold").open()
        await until_nothing_is_kept(stage)
        with pytest.raises(openai.NotFoundError, match="store: false"):
            await client.responses.retrieve(found[0])
        with pytest.raises(openai.NotFoundError, match="store: false"):
            await client.responses.create(model="bargein", input="y", previous_response_id=found[0])
        with pytest.raises(openai.BadRequestError, match="background"):
            await client.responses.create(model="bargein", input="y", store=False, background=True)


@pytest.mark.parametrize("path", [CHAT, RESPONSES])
async def test_what_was_not_to_be_kept_is_gone_after_a_crash(tmp_path: Path, path: str) -> None:
    """Neither its turn nor a message that waited in it is taken up."""
    body: Json = {"messages": HELLO} if path == CHAT else {"input": "x", "store": False}
    store = MemoryStore()
    copy = tmp_path / "copy.sqlite3"
    async with (
        asking([HOLD], tmp_path, store=store) as (stage, _),
        anyio.create_task_group() as group,
    ):
        group.start_soon(post, stage, path, body)
        await stage.model.gate("hold").reached()
        crashed = MemoryStore()
        crashed.restore(store.snapshot())
        with closing(sqlite3.connect(stage.db.path)) as source:
            source.execute("VACUUM INTO ?", (str(copy),))
        group.cancel_scope.cancel()
    home = tmp_path / "after"
    home.mkdir()
    copy.rename(home / "gateway.sqlite3")
    assert await crashed.sessions()
    async with asking([[Say("never")]], home, store=crashed) as (stage, _):
        await until_nothing_is_kept(stage)
        assert (await stage.get("/v1/sessions"))["sessions"] == []
        assert not stage.model.plays


async def test_a_key_does_not_keep_what_is_not_to_be_stored(tmp_path: Path) -> None:
    async with asking([[Say("a")], [Say("b")]], tmp_path) as (stage, _):
        body: Json = {"input": "x", "store": False}
        first, _ = await post(stage, RESPONSES, body, "k")
        assert first.status == 200
        await until_nothing_is_kept(stage)
        second, content = await post(stage, RESPONSES, body, "k")
        assert (second.status, len(stage.model.plays)) == (404, 1)
        assert b"this key" in content


async def test_one_that_is_not_stored_goes_on_from_one_that_is_and_leaves_it_alone(
    tmp_path: Path,
) -> None:
    async with asking([[Say("a")], [Say("b")], [Say("c")]], tmp_path) as (stage, client):
        first = await client.responses.create(model="bargein", input="one", instructions="Short.")
        second = await client.responses.create(
            model="bargein", input="two", previous_response_id=first.id, store=False
        )
        assert (second.output_text, second.previous_response_id) == ("b", first.id)
        assert said(stage, 1) == ["one", "a", "two"]
        assert "Short." in stage.model.requests[1].system
        (left,) = (await stage.get("/v1/sessions"))["sessions"]
        assert f"resp_{left['id']}.m1" == first.id
        await client.responses.create(model="bargein", input="3", previous_response_id=first.id)
        assert said(stage, 2) == ["one", "a", "3"]


async def test_a_response_that_was_gone_on_from_before_is_a_branch(tmp_path: Path) -> None:
    async with asking([[Say(word)] for word in "abc"], tmp_path) as (stage, client):
        first = await client.responses.create(model="bargein", input="one")
        ids = [
            (
                await client.responses.create(
                    model="bargein", input=words, previous_response_id=first.id
                )
            ).id
            for words in ("two", "three")
        ]
        assert said(stage, 1) == ["one", "a", "two"]
        assert said(stage, 2) == ["one", "a", "three"]
        sessions = {each.rpartition(".")[0] for each in (first.id, *ids)}
        assert len(sessions) == 2


def said(stage: Stage, place: int) -> list[str]:
    return [
        part.text
        for message in stage.model.requests[place].messages
        if not isinstance(message, ToolMessage)
        for part in message.content
        if isinstance(part, Text)
    ]


async def test_a_response_is_deleted_with_its_session(tmp_path: Path) -> None:
    async with asking([[Say("a")], [Say("b")]], tmp_path) as (stage, client):
        first = await client.responses.create(model="bargein", input="one")
        second = await client.responses.create(
            model="bargein", input="two", previous_response_id=first.id
        )
        with pytest.raises(openai.BadRequestError, match="DELETE /v1/sessions/"):
            await client.responses.delete(second.id)
        await stage.ask("DELETE", f"/v1/sessions/{(second.metadata or {})['session']}")
    async with asking([[Say("a")]], tmp_path) as (stage, client):
        only = await client.responses.create(model="bargein", input="one")
        await client.responses.delete(only.id)
        await until_nothing_is_kept(stage)
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(only.id)


# Answers of a given form


async def test_an_answer_of_a_given_form_through_the_official_client(tmp_path: Path) -> None:
    script: Script = [[Say("Well, red.")], [Say(FITS)], [Say(FITS)]]
    async with asking(script, tmp_path) as (stage, client):
        answer = await client.chat.completions.parse(
            model="bargein", messages=HELLO, response_format=Colour
        )
        parsed = answer.choices[0].message.parsed
        assert parsed == Colour(colour="red", shades=[1, 2])
        asked = stage.model.requests[0].response_schema
        assert asked is not None
        assert msgspec.json.decode(asked)["additionalProperties"] is False
        response = await client.responses.parse(model="bargein", input="Which?", text_format=Colour)
        assert response.output_parsed == parsed


@pytest.mark.parametrize("api", ["chat", "responses"])
async def test_a_stream_of_a_given_form_has_nothing_else_in_it(tmp_path: Path, api: str) -> None:
    script: Script = [
        [Say("Let me ask."), Call("ask", {"question": "Which?"})],
        [Say("red")],
        [Say('{"colour": '), Say('"red"}')],
    ]
    async with asking(script, tmp_path, questions=QuestionPolicy.REFUSE) as (stage, client):
        if api == "chat":
            chunks = await client.chat.completions.create(
                model="bargein",
                messages=HELLO,
                stream=True,
                response_format={"type": "json_object"},
            )
            text = "".join([c.choices[0].delta.content or "" async for c in chunks])
        else:
            events = await client.responses.create(
                model="bargein", input="x", stream=True, text={"format": {"type": "json_object"}}
            )
            text = "".join(
                [e.delta async for e in events if e.type == "response.output_text.delta"]
            )
        assert text == '{"colour": "red"}'
        assert len(stage.model.plays) == 3


@pytest.mark.parametrize("stream", [False, True])
async def test_a_typed_agent_gives_its_json_alone(tmp_path: Path, stream: bool) -> None:
    script: Script = [[Say("Well, red.")], [Say(FITS)]]
    async with asking(script, tmp_path, output_type=output_type(Colour)) as (_, client):
        if stream:
            chunks = await client.chat.completions.create(
                model="bargein", messages=HELLO, stream=True
            )
            text = "".join([c.choices[0].delta.content or "" async for c in chunks])
        else:
            answer = await client.chat.completions.create(model="bargein", messages=HELLO)
            text = answer.choices[0].message.content or ""
        assert text == FITS


async def test_an_answer_that_never_fits_is_an_error_with_the_reason(tmp_path: Path) -> None:
    async with asking([[Say("red")]] * (REPAIRS_MAX + 1), tmp_path) as (stage, client):
        with pytest.raises(openai.InternalServerError, match="does not fit"):
            await client.with_options(max_retries=2).chat.completions.parse(
                model="bargein", messages=HELLO, response_format=Colour
            )
        assert len(stage.model.plays) == REPAIRS_MAX + 1


async def test_a_schema_that_cannot_be_checked_is_refused(tmp_path: Path) -> None:
    schema = {"type": "object", "patternProperties": {"x": {}}}
    formats: list[tuple[str, str, Json]] = [
        (
            CHAT,
            "response_format",
            {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}},
        ),
        (RESPONSES, "text.format", {"type": "json_schema", "name": "a", "schema": schema}),
    ]
    async with asking([], tmp_path) as (stage, _):
        for path, param, asked in formats:
            body: Json = {"messages": HELLO, "response_format": asked}
            if path == RESPONSES:
                body = {"input": "x", "text": {"format": asked}}
            response, content = await post(stage, path, body)
            error = msgspec.json.decode(content)["error"]
            assert (response.status, error["param"]) == (400, param)
            assert "patternProperties" in error["message"]


@pytest.mark.parametrize("tells", [False, True])
def test_what_a_failed_attempt_had_said_is_forgotten_if_nobody_saw_it(tells: bool) -> None:
    followed = Followed("s", "m1", streams=tells)
    followed.add(Recorded(1, 0.0, TurnStarted("t1", ("m1",))))
    followed.add(StepBegan("t1", StepKind.MODEL, "model"))
    followed.add(TextDelta("t1", "half"))
    void = AnswerVoid("t1", "the connection broke", 0.0, "model")
    if tells:
        with pytest.raises(Problem, match="in the middle of its answer"):
            followed.add(void)
        return
    followed.add(void)
    followed.add(TextDelta("t1", "whole"))
    assert followed.text == "whole"


# Looking, and coming back


async def test_a_model_is_found_by_its_name(tmp_path: Path) -> None:
    async with asking([], tmp_path) as (_, client):
        assert (await client.models.retrieve("bargein")).id == "bargein"
        with pytest.raises(openai.NotFoundError, match="gpt-9"):
            await client.models.retrieve("gpt-9")


async def test_a_background_response_is_streamed_again_from_any_place(tmp_path: Path) -> None:
    script: Script = [[Say("One "), Say("two "), Wait("hold"), Say("three")]]
    async with asking(script, tmp_path) as (stage, client):
        begun = await client.responses.create(model="bargein", input="x", background=True)
        await stage.model.gate("hold").reached()
        seen = 0
        async with await client.responses.retrieve(begun.id, stream=True) as stream:
            async for event in stream:
                if event.type == "response.output_text.delta":
                    seen = event.sequence_number
                    break
        rest: list[str] = []
        kinds: list[str] = []
        stage.model.gate("hold").open()
        async for event in await client.responses.retrieve(
            begun.id, stream=True, starting_after=seen
        ):
            kinds.append(event.type)
            if event.type == "response.output_text.delta":
                rest.append(event.delta)
        assert "response.created" not in kinds
        assert kinds[-1] == "response.completed"
        whole = events_in((await _streamed(stage, begun.id, ""))[1])
        numbers = [event["sequence_number"] for event in whole]
        assert numbers == sorted(set(numbers))
        said_before = "One two three"[: seen - 3]
        assert said_before + "".join(rest) == "One two three"
        # From every place: what comes is what is missing, and nothing else.
        text = "".join(event.get("delta", "") for event in whole)
        assert text == "One two three"
        for after in range(numbers[-1] + 1):
            again = events_in((await _streamed(stage, begun.id, f"&starting_after={after}"))[1])
            missing = "".join(event.get("delta", "") for event in again)
            assert missing == text[max(0, after - 3) :], after
            assert all(event["sequence_number"] > after for event in again)


async def _streamed(stage: Stage, response: str, more: str) -> tuple[int, bytes]:
    url = f"{stage.url}{RESPONSES}/{response}?stream=true{more}"
    headers = {"authorization": f"Bearer {START_TOKEN}"}
    async with stage.http.get(url, headers=headers) as answer:
        return answer.status, await answer.read()


async def test_numbers_of_a_stream_are_the_same_after_a_restart(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "sessions.sqlite3")
    contents = []
    response = ""
    try:
        for _ in range(2):
            async with asking([[Say("a "), Say("b")]], tmp_path, store=store) as (stage, client):
                if not response:
                    made = await client.responses.create(model="bargein", input="x")
                    response = made.id
                contents.append(events_in((await _streamed(stage, response, ""))[1]))
    finally:
        await store.aclose()
    assert contents[0] == contents[1]


async def test_a_reader_that_goes_away_stops_nothing(tmp_path: Path) -> None:
    async with asking([HOLD], tmp_path) as (stage, client):
        begun = await client.responses.create(model="bargein", input="x", background=True)
        await stage.model.gate("hold").reached()
        async with await client.responses.retrieve(begun.id, stream=True) as stream:
            async for event in stream:
                if event.type == "response.output_text.delta":
                    break
        await until(lambda: not stage.gateway.streams)
        assert (await client.responses.retrieve(begun.id)).status == "in_progress"
        stage.model.gate("hold").open()
        await until_nothing_runs(stage)
        assert (await client.responses.retrieve(begun.id)).output_text == "One two"


async def test_what_a_response_was_asked_can_be_listed(tmp_path: Path) -> None:
    async with asking([[Say("a")], [Say("b")]], tmp_path) as (_, client):
        first = await client.responses.create(
            model="bargein",
            input=[
                {"role": "user", "content": "before"},
                {"role": "assistant", "content": "yes"},
                {"role": "user", "content": "now"},
            ],
        )
        second = await client.responses.create(
            model="bargein", input="then", previous_response_id=first.id
        )
        page = client.responses.input_items.list(first.id, order="asc", limit=2)
        texts = [item.content[0].text async for item in page]  # type: ignore[union-attr, index]
        assert texts == ["before", "yes", "now"]
        page = client.responses.input_items.list(second.id)
        assert [item.content[0].text async for item in page] == ["then"]  # type: ignore[union-attr, index]


# Replays


async def test_a_replay_says_that_it_is_one(tmp_path: Path) -> None:
    async with asking([[Say("a")], [Say("b")], [Say("c")], HOLD], tmp_path) as (stage, _):
        bodies: list[tuple[str, Json]] = [
            (CHAT, {"messages": HELLO}),
            (CHAT, {"messages": HELLO, "stream": True}),
            (RESPONSES, {"input": "x"}),
            (RESPONSES, {"input": "x", "background": True}),
        ]
        content = b""
        for place, (path, body) in enumerate(bodies):
            for again in (False, True):
                response, content = await post(stage, path, body, f"key{place}")
                assert response.status == 200
                assert (response.headers.get("idempotency-replayed") == "true") is again, body
        cancel = f"{RESPONSES}/{msgspec.json.decode(content)['id']}/cancel"
        answers = [await post(stage, cancel, {}, "key-cancel") for _ in range(2)]
        assert answers[0][1] == answers[1][1]
        replayed = [answer.headers.get("idempotency-replayed") for answer, _ in answers]
        assert replayed == [None, "true"]
        assert len(stage.model.plays) == 4


async def test_a_replay_on_the_native_side_says_so_too(tmp_path: Path) -> None:
    async with asking([[Say("a")]], tmp_path) as (stage, _):
        made = [await post(stage, "/v1/sessions", {}, "k") for _ in range(2)]
        session = msgspec.json.decode(made[0][1])["session"]["id"]
        path = f"/v1/sessions/{session}/messages"
        sent = [await post(stage, path, {"text": "x"}, "m") for _ in range(2)]
        for first, second in (made, sent):
            assert "idempotency-replayed" not in first[0].headers
            assert second[0].headers["idempotency-replayed"] == "true"


# Fields


@pytest.mark.parametrize("path", [CHAT, RESPONSES])
async def test_every_field_is_honoured_refused_or_ignored_as_documented(
    tmp_path: Path, path: str
) -> None:
    kind = ChatRequest if path == CHAT else ResponseRequest
    body: Json = {"messages": HELLO} if path == CHAT else {"input": "x"}
    fields = set(kind.__struct_fields__)
    ignored = {**dict.fromkeys(sorted(fields & IGNORED), 1)}
    async with asking([[Say("a")]] * 3, tmp_path) as (stage, _):
        response, content = await post(stage, path, {**body, **ignored})
        assert response.status == 200, content
        harmless = {"n": 1, "tool_choice": "auto", "modalities": ["text"], "stop": []}
        nothing = dict.fromkeys(fields & set(REFUSED))
        nothing |= {name: value for name, value in harmless.items() if name in fields}
        response, content = await post(stage, path, {**body, **nothing})
        assert response.status == 200, content
        for name in fields & set(REFUSED):
            response, content = await post(stage, path, {**body, name: ["x"]})
            error = msgspec.json.decode(content)["error"]
            assert (response.status, error["param"]) == (400, name)
            assert error["message"].startswith(f"{name} is ['x']: ")
        response, content = await post(stage, path, {**body, "temprature": 1})
        assert response.status == 400
        assert "did you mean temperature?" in content.decode()
        assert len(stage.model.plays) == 2


def test_the_page_has_a_row_for_every_field() -> None:
    page = GATEWAY_DOC.read_text()
    honoured, refused, ignored = (
        page.partition(f"| {word} |")[2].partition("\n")[0]
        for word in ("honoured", "refused", "ignored")
    )
    for kind in (ChatRequest, ResponseRequest):
        for name in kind.__struct_fields__:
            row = refused if name in REFUSED else ignored if name in IGNORED else honoured
            assert f"`{name}`" in row, name
