"""The error for an invalid body says what would be valid."""

from pathlib import Path

import msgspec
import pytest

from bargein.server.openai.shapes import ChatRequest, ResponseRequest
from bargein.server.operation import decode
from bargein.server.problems import Problem
from bargein.server.shapes import (
    Answer,
    CallInterrupt,
    InterruptBody,
    NewMessage,
    NewSession,
    Nothing,
    SessionChange,
)
from bargein.server.validation_errors import describe_validation_error
from tests.server.stage import serving

CASES: list[tuple[type[msgspec.Struct], str, str]] = [
    (
        NewMessage,
        '{"text": "x", "mode": "dance"}',
        "mode is 'dance': say steer, interrupt, queue, rollback or reject",
    ),
    (InterruptBody, '{"scope": "all"}', "scope is 'all': say call, child, turn, session or side"),
    (
        SessionChange,
        '{"members": {"b": "sing"}}',
        "members[...] is 'sing': say read, talk or write",
    ),
    (
        ChatRequest,
        '{"messages": [{"role": "dance", "content": "x"}]}',
        "messages[0].role is 'dance': say system, developer, user, assistant or tool",
    ),
    (
        ChatRequest,
        '{"messages": [{"role": "user", "content": [{"type": "video"}]}]}',
        "messages[0].content[0].type is 'video': say text or image_url",
    ),
    (
        ResponseRequest,
        '{"input": [{"role": "dance", "content": "x"}]}',
        "input[0].role is 'dance': say assistant, developer, system or user",
    ),
    (
        NewMessage,
        '{"text": "x", "mod": "queue"}',
        "there is no field 'mod'; did you mean mode?",
    ),
    (
        NewMessage,
        '{"text": "x", "attachments": [{"colour": 1}]}',
        "there is no field 'colour' in attachments[0]; there are name, media_type and data",
    ),
    (NewSession, '{"name": "x"}', "there is no field 'name'; there are title and id"),
    (CallInterrupt, '{"reson": "x"}', "there is no field 'reson'; did you mean reason?"),
    (Nothing, '{"name": "x"}', "there is no field 'name'; it takes none"),
    (Answer, "{}", "Object missing required field `text`"),
    (NewMessage, '{"text": 5}', "Expected `str`, got `int` - at `$.text`"),
]


@pytest.mark.parametrize(("shape", "body", "told"), CASES)
def test_what_would_fit_is_told(shape: type[msgspec.Struct], body: str, told: str) -> None:
    with pytest.raises(Problem) as caught:
        decode(msgspec.json.Decoder(shape), body.encode())
    assert caught.value.detail == f"the body is not right: {told}"


def test_a_long_value_is_not_told_back_whole() -> None:
    body = msgspec.json.encode({"text": "x", "mode": "d" * 5000})
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.json.decode(body, type=NewMessage)
    told = describe_validation_error(caught.value, NewMessage)
    assert len(told) < 200
    assert told.endswith("say steer, interrupt, queue, rollback or reject")


@pytest.mark.anyio
async def test_a_parameter_that_is_not_known_is_told(tmp_path: Path) -> None:
    async with serving([], tmp_path) as stage:
        session = await stage.new_session()
        told = {
            "/v1/sessions?limt=3": "there is no ?limt= here; did you mean ?limit=?",
            f"{session}/turns/t1?until=3": "there is no ?until= here; there are wait and wait_s",
            f"{session}/inbox?limit=3": "there is no ?limit= here; it takes none",
        }
        for path, detail in told.items():
            status, answer = await stage.ask("GET", path)
            assert (status, answer["code"], answer["detail"]) == (400, "bad_request", detail)
