from __future__ import annotations

import json

import msgspec
import pytest

from bargein.contracts.model import (
    AssistantMessage,
    CallPart,
    EndPart,
    Image,
    ModelRequest,
    Part,
    Reasoning,
    ReasoningPart,
    StopReason,
    Text,
    TextPart,
    ToolCall,
    ToolMessage,
    ToolResult,
    ToolSchema,
    Usage,
    UsagePart,
    UserMessage,
)
from bargein.models.dialects.anthropic import AnthropicDecoder, AnthropicDialect
from bargein.models.dialects.faults import FaultKind, StreamFault
from bargein.models.errors import Secret
from tests.models.harness import joined

STOP = {"type": "message_stop"}
CACHE = {"type": "ephemeral"}


def encode(request: ModelRequest) -> dict[str, object]:
    body: dict[str, object] = json.loads(AnthropicDialect().encode("m", request))
    return body


def decode(*events: object) -> list[Part]:
    decoder = AnthropicDecoder()
    out: list[Part] = []
    for event in events:
        decoder.feed(event if isinstance(event, bytes) else json.dumps(event).encode(), out)
    decoder.end(out)
    return joined(out)


def delta(index: int = 0, **fields: object) -> dict[str, object]:
    return {"type": "content_block_delta", "index": index, "delta": fields}


def start(index: int = 0, **fields: object) -> dict[str, object]:
    return {"type": "content_block_start", "index": index, "content_block": fields}


def test_a_whole_conversation() -> None:
    request = ModelRequest(
        system="Be brief.",
        messages=(
            UserMessage((Text("Look"), Image("image/png", b"\x89PNG"))),
            AssistantMessage(
                (
                    Reasoning("unsigned"),
                    Reasoning("foreign", "openai-responses:rs:c"),
                    Reasoning("mine", "anthropic:proof"),
                    Reasoning("", "anthropic-redacted:blob"),
                    Text("Reading."),
                    ToolCall("call.1", "read", '{"path":"a"}'),
                )
            ),
            ToolMessage((ToolResult("call.1", (Text("no"),), is_error=True),)),
            UserMessage((Text("And now?"),)),
        ),
        tools=(ToolSchema("read", "Reads.", msgspec.Raw(b'{"type":"object"}')),),
    )
    assert encode(request) == {
        "model": "m",
        "max_tokens": 8192,
        "stream": True,
        "system": [{"type": "text", "text": "Be brief.", "cache_control": CACHE}],
        "tools": [{"name": "read", "description": "Reads.", "input_schema": {"type": "object"}}],
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "Look"},
                    {
                        "type": "image",
                        "source": {
                            "type": "base64",
                            "media_type": "image/png",
                            "data": "iVBORw==",
                        },
                    },
                ],
            },
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "mine", "signature": "proof"},
                    {"type": "redacted_thinking", "data": "blob"},
                    {"type": "text", "text": "Reading."},
                    {"type": "tool_use", "id": "call_1", "name": "read", "input": {"path": "a"}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {
                        "type": "tool_result",
                        "tool_use_id": "call_1",
                        "content": [{"type": "text", "text": "no"}],
                        "is_error": True,
                    },
                    {"type": "text", "text": "And now?", "cache_control": CACHE},
                ],
            },
        ],
    }


@pytest.mark.parametrize("arguments", ['{"a', "[1]", "", '"text"'])
def test_arguments_that_are_no_object_are_wrapped(arguments: str) -> None:
    request = ModelRequest((AssistantMessage((ToolCall("c", "read", arguments),)),))
    messages = encode(request)["messages"]
    assert isinstance(messages, list)
    assert list(messages[0]["content"][0]["input"].values()) == [arguments]


def test_empty_text_is_left_out() -> None:
    request = ModelRequest((UserMessage((Text(" \n"),)), UserMessage((Text("x"),))))
    messages = encode(request)["messages"]
    assert isinstance(messages, list)
    assert len(messages) == 1
    assert len(messages[0]["content"]) == 1


def test_the_key_goes_into_its_own_header() -> None:
    headers = AnthropicDialect().headers(Secret("k"))
    assert headers == {"x-api-key": "k", "anthropic-version": "2023-06-01"}
    assert "x-api-key" not in AnthropicDialect().headers(None)


def test_usage_is_what_was_read_in_all() -> None:
    first = {"input_tokens": 10, "cache_read_input_tokens": 100, "cache_creation_input_tokens": 5}
    last = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}}
    assert decode(
        {"type": "message_start", "message": {"usage": {**first, "output_tokens": 1}}},
        delta(type="text_delta", text="Hi"),
        {**last, "usage": {"output_tokens": 7}},
        STOP,
    ) == [TextPart("Hi"), UsagePart(Usage(115, 7, 100)), EndPart(StopReason.END)]


def test_thinking_is_signed_at_its_end() -> None:
    assert decode(
        start(type="thinking", thinking=""),
        delta(type="thinking_delta", thinking="hm"),
        delta(type="signature_delta", signature="proof"),
        {"type": "content_block_stop", "index": 0},
        start(1, type="redacted_thinking", data="blob"),
        STOP,
    ) == [
        ReasoningPart("hm", "anthropic:proof"),
        ReasoningPart("", "anthropic-redacted:blob"),
        EndPart(StopReason.END),
    ]


def test_calls_without_arguments_and_with_all_at_once() -> None:
    parts = decode(
        start(1, type="tool_use", id="c1", name="now", input={}),
        delta(1, type="input_json_delta", partial_json=""),
        start(2, type="tool_use", id="c2", name="read", input={"a": 1}),
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}},
        STOP,
    )
    assert parts == [
        CallPart(0, "c1", "now"),
        CallPart(1, "c2", "read", '{"a":1}'),
        CallPart(0, arguments="{}"),
        EndPart(StopReason.TOOL_CALLS),
    ]


def test_a_tool_that_the_provider_runs_is_none_of_ours() -> None:
    assert decode(
        start(type="server_tool_use", id="s1", name="web_search"),
        delta(type="input_json_delta", partial_json='{"query":"x"}'),
        {"type": "brand_new_event"},
        STOP,
    ) == [EndPart(StopReason.END)]


@pytest.mark.parametrize(
    ("reason", "stop"),
    [
        ("end_turn", StopReason.END),
        ("max_tokens", StopReason.LENGTH),
        ("model_context_window_exceeded", StopReason.LENGTH),
        ("refusal", StopReason.REFUSED),
        ("pause_turn", StopReason.OTHER),
    ],
)
def test_reasons_to_stop(reason: str, stop: StopReason) -> None:
    event = {"type": "message_delta", "delta": {"stop_reason": reason}}
    assert decode(event) == [EndPart(stop)]


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"type": "overloaded_error", "message": "Overloaded"}, FaultKind.SERVER),
        ({"type": "rate_limit_error", "message": "slow"}, FaultKind.RATE),
        ({"type": "authentication_error", "message": "no"}, FaultKind.KEY),
        (
            {"type": "invalid_request_error", "message": "prompt is too long: 9 tokens > 8"},
            FaultKind.CONTEXT,
        ),
        ({"type": "not_found_error", "message": "model"}, FaultKind.MISSING),
    ],
)
def test_an_error_inside_the_stream(error: object, kind: FaultKind) -> None:
    with pytest.raises(StreamFault) as caught:
        decode({"type": "error", "error": error})
    assert caught.value.kind is kind


def test_an_answer_that_is_cut_short_is_broken() -> None:
    with pytest.raises(StreamFault, match="before it was complete"):
        decode(delta(type="text_delta", text="Hi"))


CLOSED = '{"type":"object","properties":{"a":%s},"required":["a"],"additionalProperties":false}'


@pytest.mark.parametrize(
    ("model", "schema", "taken"),
    [
        ("claude-sonnet-4-5", CLOSED % '{"type":"string"}', True),
        ("claude-opus-4-1-20250805", CLOSED % '{"type":"string"}', True),
        ("claude-sonnet-4-20250514", CLOSED % '{"type":"string"}', False),
        ("claude-3-7-sonnet-latest", CLOSED % '{"type":"string"}', False),
        ("claude-sonnet-4-5", '{"type":"object"}', False),
        ("claude-sonnet-4-5", CLOSED % '{"type":"integer","minimum":1}', True),
        ("claude-sonnet-4-5", CLOSED % '{"prefixItems":[{"type":"string"}]}', False),
        ("claude-sonnet-4-5", CLOSED % '{"anyOf":[{"$ref":"#"},{"type":"null"}]}', False),
    ],
)
def test_a_schema_is_sent_where_it_is_taken(model: str, schema: str, taken: bool) -> None:
    request = ModelRequest((), response_schema=msgspec.Raw(schema.encode()))
    body = json.loads(AnthropicDialect().encode(model, request))
    assert ("output_config" in body) == taken
