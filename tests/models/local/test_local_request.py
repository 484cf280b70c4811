"""Requests to a small model leave out what it cannot use, and a notice says so once."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from bargein.contracts.model import (
    AssistantMessage,
    Image,
    ModelRequest,
    Reasoning,
    Text,
    ToolCall,
    ToolMessage,
    ToolResult,
    ToolSchema,
    UserMessage,
)
from bargein.models.local import Notice, Reading, TooSmall
from bargein.models.local.handshake import Facts
from bargein.models.local.request import LocalDialect, fit
from bargein.process import Containment
from tests.models.local.files import fake_file
from tests.models.local.harness import model_of, of_kind, parts_of

PICTURE = Image("image/png", b"not looked at")
TOOL = ToolSchema("look", "Look at a file.", msgspec.Raw(b'{"type": "object"}'))
CONVERSATION = ModelRequest(
    messages=(
        UserMessage((Text("What is this?"), PICTURE)),
        AssistantMessage(
            (Text("Let me look."), Reasoning("hm"), ToolCall("1", "look", '{"a": 1}'))
        ),
        ToolMessage((ToolResult("1", (Text("a cat"), PICTURE)), ToolResult("2", (), True))),
        UserMessage((Text("And?"),)),
    ),
    tools=(TOOL,),
)
CAN_ALL = Facts("http://127.0.0.1:1", 4096, reads_tools=True, sees_images=True)
CAN_TALK = Facts("http://127.0.0.1:1", 4096)


def test_a_model_that_can_all_is_asked_as_it_is() -> None:
    assert fit(CONVERSATION, CAN_ALL) == (CONVERSATION, ())


def test_a_model_that_can_only_talk_is_told_the_rest_in_words() -> None:
    request, left_out = fit(CONVERSATION, CAN_TALK)
    assert left_out == ("images", "tools")
    assert request.tools == ()
    cannot_see = "(an image, which you cannot see)"
    assert request.messages == (
        UserMessage((Text(f"What is this?\n{cannot_see}"),)),
        AssistantMessage(
            (Text("Let me look."), Reasoning("hm"), Text('\n(used look with {"a": 1})'))
        ),
        UserMessage((Text(f"(It gave: a cat\n{cannot_see})"), Text("(It failed: )"))),
        UserMessage((Text("And?"),)),
    )


def test_tools_without_eyes_and_eyes_without_tools() -> None:
    request, left_out = fit(CONVERSATION, Facts("", 1, reads_tools=True))
    assert (left_out, request.tools) == (("images",), (TOOL,))
    assert isinstance(request.messages[2], ToolMessage)
    request, left_out = fit(CONVERSATION, Facts("", 1, sees_images=True))
    assert left_out == ("tools",)
    assert PICTURE in request.messages[2].content  # type: ignore[union-attr]


def test_a_long_result_is_cut() -> None:
    long = ModelRequest(messages=(ToolMessage((ToolResult("1", (Text("x" * 10_000),)),)),))
    request, left_out = fit(long, CAN_TALK)
    assert left_out == ()
    (message,) = request.messages
    assert isinstance(message, UserMessage)
    assert isinstance(message.content[0], Text)
    assert len(message.content[0].text) < 2100


def test_news_of_the_reading_is_asked_for_and_heard() -> None:
    heard: list[tuple[int, int]] = []
    dialect = LocalDialect(lambda done, total: heard.append((done, total)))
    body = msgspec.json.decode(dialect.encode("local", CONVERSATION), type=dict[str, object])
    assert body["return_progress"] is True
    assert body["stream"] is True
    decoder = dialect.decoder()
    decoder.feed(
        b'{"choices":[{"index":0,"delta":{"role":"assistant","content":null}}],'
        b'"prompt_progress":{"total":46,"cache":24,"processed":40,"time_ms":91}}',
        [],
    )
    assert heard == [(40, 46)]


@pytest.mark.anyio
@pytest.mark.parametrize("reads_tools", [False, True])
async def test_what_is_left_out_is_said_once(
    containment: Containment, tmp_path: Path, reads_tools: bool
) -> None:
    file = fake_file(tmp_path, facts={"reads_tools": reads_tools})
    notices: list[Notice] = []
    request = ModelRequest(messages=(UserMessage((Text("hello"),)),), tools=(TOOL,))
    async with model_of(file, containment, notices) as model:
        assert model.name == f"local:{file.path}"
        assert model.context_tokens == 4096
        assert model.endpoint.reads_tools is None
        await parts_of(model, request)
        assert model.endpoint.reads_tools is reads_tools
        await parts_of(model, request)
    asked = [note["body"] for note in file.seen("asked")]
    assert [("tools" in body) for body in asked] == [reads_tools] * 2
    told = of_kind(TooSmall, notices)
    assert [notice.left_out for notice in told] == ([] if reads_tools else ["tools"])
    assert all("can only talk" in str(notice) for notice in told)
    assert of_kind(Reading, notices)
