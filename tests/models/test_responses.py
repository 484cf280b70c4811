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
    UserMessage,
)
from bargein.models.dialects.faults import FaultKind, StreamFault
from bargein.models.dialects.responses import ResponsesDecoder, ResponsesDialect
from tests.models.harness import joined

COMPLETED = {"type": "response.completed", "response": {"status": "completed"}}
END = EndPart(StopReason.END)


def encode(request: ModelRequest, model: str = "m") -> dict[str, object]:
    body: dict[str, object] = json.loads(ResponsesDialect().encode(model, request))
    return body


def decode(*events: object) -> list[Part]:
    decoder = ResponsesDecoder()
    out: list[Part] = []
    for event in events:
        decoder.feed(event if isinstance(event, bytes) else json.dumps(event).encode(), out)
    decoder.end(out)
    return joined(out)


def test_a_whole_conversation() -> None:
    request = ModelRequest(
        system="Be brief.",
        messages=(
            UserMessage((Text("Look"), Image("image/png", b"\x89PNG"))),
            AssistantMessage(
                (
                    Reasoning("unsigned"),
                    Reasoning("foreign", "anthropic:sig"),
                    Reasoning("mine", "openai-responses:rs_1:cipher:with:colons"),
                    Text("Reading."),
                    ToolCall("c1", "read", "{}"),
                )
            ),
            ToolMessage((ToolResult("c1", (Text("ok"),)),)),
        ),
        tools=(ToolSchema("read", "Reads.", msgspec.Raw(b"{}")),),
        output_tokens_max=7,
    )
    assert encode(request) == {
        "model": "m",
        "stream": True,
        "store": False,
        "instructions": "Be brief.",
        "max_output_tokens": 7,
        "tools": [
            {
                "type": "function",
                "name": "read",
                "description": "Reads.",
                "parameters": {},
                "strict": False,
            }
        ],
        "input": [
            {
                "type": "message",
                "role": "user",
                "content": [
                    {"type": "input_text", "text": "Look"},
                    {"type": "input_image", "image_url": "data:image/png;base64,iVBORw=="},
                ],
            },
            {
                "type": "reasoning",
                "id": "rs_1",
                "summary": [{"type": "summary_text", "text": "mine"}],
                "encrypted_content": "cipher:with:colons",
            },
            {
                "type": "message",
                "role": "assistant",
                "content": [{"type": "output_text", "text": "Reading."}],
            },
            {"type": "function_call", "call_id": "c1", "name": "read", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": "ok"},
        ],
    }


def test_encrypted_reasoning_is_asked_only_of_models_that_reason() -> None:
    request = ModelRequest((UserMessage((Text("hi"),)),))
    assert encode(request, "gpt-5-mini")["include"] == ["reasoning.encrypted_content"]
    assert encode(request, "openai/o3")["include"] == ["reasoning.encrypted_content"]
    assert "include" not in encode(request, "gpt-4o")
    assert "include" not in encode(request, "gpt-5-chat-latest")


def test_a_failed_result_with_an_image() -> None:
    result = ToolResult("c1", (Text("no"), Image("image/png", b"\x89PNG")), is_error=True)
    items = encode(ModelRequest((ToolMessage((result,)),)))["input"]
    assert isinstance(items, list)
    assert [piece["type"] for piece in items[0]["output"]] == ["input_text", "input_image"]
    assert items[0]["output"][0]["text"] == "Error: no"


def test_reasoning_is_signed_by_its_finished_item() -> None:
    item = {"type": "reasoning", "id": "rs_1", "encrypted_content": "cipher"}
    assert decode(
        {"type": "response.reasoning_summary_text.delta", "delta": "hm"},
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.output_text.delta", "delta": "yes"},
        COMPLETED,
    ) == [ReasoningPart("hm", "openai-responses:rs_1:cipher"), TextPart("yes"), END]


def test_a_call_that_comes_only_when_it_is_whole() -> None:
    item = {"type": "function_call", "call_id": "c1", "name": "read", "arguments": '{"a":1}'}
    assert decode(
        {"type": "response.output_item.done", "output_index": 3, "item": item}, COMPLETED
    ) == [CallPart(0, "c1", "read", '{"a":1}'), EndPart(StopReason.TOOL_CALLS)]


def test_arguments_are_not_told_twice() -> None:
    item = {"type": "function_call", "call_id": "c1", "name": "read", "arguments": ""}
    done = {**item, "arguments": "[1]"}
    kind = "response.function_call_arguments.delta"
    assert decode(
        {"type": "response.output_item.added", "output_index": 0, "item": item},
        {"type": kind, "output_index": 0, "delta": "[1]"},
        {"type": "response.output_item.done", "output_index": 0, "item": done},
        COMPLETED,
    )[0] == CallPart(0, "c1", "read", "[1]")


def test_a_refusal_and_the_reasons_for_an_incomplete_answer() -> None:
    refusal = {"type": "response.refusal.delta", "delta": "No."}
    assert decode(refusal, COMPLETED)[-1] == EndPart(StopReason.REFUSED)
    for reason, stop in (
        ("max_output_tokens", StopReason.LENGTH),
        ("content_filter", StopReason.REFUSED),
        ("something new", StopReason.OTHER),
    ):
        response = {"status": "incomplete", "incomplete_details": {"reason": reason}}
        event = {"type": "response.incomplete", "response": response}
        assert decode(event) == [EndPart(stop)]


@pytest.mark.parametrize(
    ("event", "kind"),
    [
        ({"type": "error", "code": "rate_limit_exceeded", "message": "slow"}, FaultKind.RATE),
        ({"type": "error", "error": {"message": "x", "type": "server_error"}}, FaultKind.SERVER),
        ({"error": {"message": "x"}}, FaultKind.SERVER),
        (
            {
                "type": "response.failed",
                "response": {
                    "status": "failed",
                    "error": {"code": "context_length_exceeded", "message": "long"},
                },
            },
            FaultKind.CONTEXT,
        ),
        ({"type": "response.failed", "response": {"status": "failed"}}, FaultKind.SERVER),
        ({"type": "response.function_call_arguments.delta", "delta": "{"}, FaultKind.BROKEN),
        ({"type": "response.output_text.delta", "delta": {"not": "text"}}, FaultKind.BROKEN),
        (b"{", FaultKind.BROKEN),
    ],
)
def test_failures(event: object, kind: FaultKind) -> None:
    with pytest.raises(StreamFault) as caught:
        decode(event)
    assert caught.value.kind is kind


def test_events_of_other_kinds_are_passed_over() -> None:
    audio = {"type": "response.audio.delta", "delta": {"pcm": 1}}
    assert decode(audio, {"type": "response.brand_new"}, COMPLETED, b"[DONE]") == [END]


def test_an_answer_that_is_cut_short_is_broken() -> None:
    with pytest.raises(StreamFault, match="before it was complete"):
        decode({"type": "response.output_text.delta", "delta": "Hi"})
