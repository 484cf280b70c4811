"""OpenAI Chat Completions, and its variants by other providers."""

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
from bargein.models.dialects.chat import ChatDecoder, ChatDialect
from bargein.models.dialects.chat_request import Quirks, quirks_of
from bargein.models.dialects.faults import FaultKind, StreamFault
from tests.models.harness import joined

IMAGE = Image("image/png", b"\x89PNG")
SCHEMA = msgspec.Raw(b'{"type":"object","properties":{"path":{"type":"string"}}}')


def decode(*chunks: object) -> list[Part]:
    decoder = ChatDecoder(new_id=lambda: "made")
    out: list[Part] = []
    for chunk in chunks:
        data = chunk if isinstance(chunk, bytes) else json.dumps(chunk).encode()
        decoder.feed(data, out)
    decoder.end(out)
    return joined(out)


def delta(finish: str | None = None, **fields: object) -> dict[str, object]:
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": finish}]}


def call(**fields: object) -> dict[str, object]:
    function = {k: fields.pop(k) for k in ("name", "arguments") if k in fields}
    return delta(tool_calls=[{**fields, "function": function}])


DONE = b"[DONE]"
STOP = delta("stop")
END = EndPart(StopReason.END)
CALLED = EndPart(StopReason.TOOL_CALLS)


def encode(request: ModelRequest, quirks: Quirks | None = None) -> dict[str, object]:
    body: dict[str, object] = json.loads(ChatDialect(quirks).encode("m", request))
    return body


def closed_object(inner: str) -> str:
    """A schema of the kind that OpenAI enforces, if what is inside is."""
    fields = f'"properties":{{"a":{inner}}},"required":["a"],"additionalProperties":false'
    return f'{{"type":"object",{fields}}}'


class TestRequest:
    def test_a_whole_conversation(self) -> None:
        request = ModelRequest(
            system="Be brief.",
            messages=(
                UserMessage((Text("Look at this"), IMAGE)),
                AssistantMessage(
                    (
                        Reasoning("hm", "anthropic:sig"),
                        Text("Reading."),
                        ToolCall("c1", "read", '{"path":"a"}'),
                    )
                ),
                ToolMessage((ToolResult("c1", (Text("contents"),)),)),
            ),
            tools=(ToolSchema("read", "Reads a file.", SCHEMA),),
            output_tokens_max=100,
            temperature=0.5,
        )
        assert encode(request) == {
            "model": "m",
            "stream": True,
            "stream_options": {"include_usage": True},
            "max_tokens": 100,
            "temperature": 0.5,
            "tools": [
                {
                    "type": "function",
                    "function": {
                        "name": "read",
                        "description": "Reads a file.",
                        "parameters": json.loads(bytes(SCHEMA)),
                    },
                }
            ],
            "messages": [
                {"role": "system", "content": "Be brief."},
                {
                    "role": "user",
                    "content": [
                        {"type": "text", "text": "Look at this"},
                        {
                            "type": "image_url",
                            "image_url": {"url": "data:image/png;base64,iVBORw=="},
                        },
                    ],
                },
                {
                    "role": "assistant",
                    "content": "Reading.",
                    "tool_calls": [
                        {
                            "id": "c1",
                            "type": "function",
                            "function": {"name": "read", "arguments": '{"path":"a"}'},
                        }
                    ],
                },
                {"role": "tool", "tool_call_id": "c1", "content": "contents"},
            ],
        }

    def test_a_result_that_is_an_image_follows_as_a_message_of_the_user(self) -> None:
        results = (ToolResult("c1", (IMAGE,)), ToolResult("c2", (Text("no"),), is_error=True))
        messages = encode(ModelRequest((ToolMessage(results),)))["messages"]
        assert isinstance(messages, list)
        assert [m["role"] for m in messages] == ["tool", "tool", "user"]
        assert messages[1]["content"] == "Error: no"
        assert messages[2]["content"][1]["type"] == "image_url"

    def test_reasoning_alone_is_no_message(self) -> None:
        request = ModelRequest((AssistantMessage((Reasoning("hm"),)),))
        assert encode(request)["messages"] == []

    def test_hosts_differ(self) -> None:
        said = AssistantMessage((Reasoning("hm"), Text("yes")))
        request = ModelRequest((said,), output_tokens_max=5)
        openai = encode(request, quirks_of("api.openai.com"))
        assert openai["max_completion_tokens"] == 5
        assert "max_tokens" not in openai
        assert "stream_options" not in encode(request, quirks_of("api.mistral.ai:443"))
        deepseek = encode(request, quirks_of("API.deepseek.com"))["messages"]
        assert deepseek == [{"role": "assistant", "content": "yes", "reasoning_content": "hm"}]

    @pytest.mark.parametrize(
        ("schema", "strict"),
        [
            ('{"type":"object","properties":{}}', None),
            (closed_object('{"type":"string"}'), True),
            (closed_object('{"type":"object"}'), None),
            (closed_object('{"allOf":[{"type":"string"}]}'), None),
            (closed_object('{"type":"string","minLength":2}'), None),
            (closed_object('{"enum":["oneOf","not"]}'), True),
        ],
    )
    def test_a_schema_is_strict_where_that_is_allowed(
        self, schema: str, strict: bool | None
    ) -> None:
        raw = msgspec.Raw(schema.encode())
        body = msgspec.json.decode(ChatDialect().encode("m", ModelRequest((), response_schema=raw)))
        assert body["response_format"]["json_schema"].get("strict") is strict
        assert body["response_format"]["json_schema"]["schema"] == json.loads(schema)

    def test_a_host_without_schemas_is_asked_for_an_object(self) -> None:
        request = ModelRequest((), response_schema=msgspec.Raw(b'{"type":"object"}'))
        body = encode(request, quirks_of("api.deepseek.com"))
        assert body["response_format"] == {"type": "json_object"}

    def test_what_is_no_object_is_left_to_the_words_of_the_request(self) -> None:
        request = ModelRequest((), response_schema=msgspec.Raw(b'{"type":"array"}'))
        assert "response_format" not in encode(request, quirks_of("api.openai.com"))


class TestAnswer:
    def test_usage_only_at_the_end(self) -> None:
        counts = {"prompt_tokens": 9, "completion_tokens": 2}
        details = {**counts, "prompt_tokens_details": {"cached_tokens": 4}}
        assert decode(delta(content="Hi"), STOP, {"choices": [], "usage": details}, DONE) == [
            TextPart("Hi"),
            UsagePart(Usage(9, 2, 4)),
            END,
        ]

    def test_usage_in_every_chunk_is_told_once(self) -> None:
        chunks = [
            {**delta(content=word), "usage": {"prompt_tokens": 9, "completion_tokens": count}}
            for count, word in enumerate(("a", "b", "c"), 1)
        ]
        assert decode(*chunks, STOP, DONE) == [TextPart("abc"), UsagePart(Usage(9, 3)), END]

    def test_groq_and_deepseek_count_elsewhere(self) -> None:
        groq = {"choices": [], "x_groq": {"usage": {"prompt_tokens": 3, "completion_tokens": 1}}}
        assert decode(delta(content="x"), STOP, groq, DONE)[1] == UsagePart(Usage(3, 1))
        deepseek = {"prompt_tokens": 5, "completion_tokens": 1, "prompt_cache_hit_tokens": 2}
        chunk = {"choices": [], "usage": deepseek}
        assert decode(delta(content="x"), STOP, chunk, DONE)[1] == UsagePart(Usage(5, 1, 2))

    def test_without_the_end_mark_a_reason_to_stop_is_enough(self) -> None:
        assert decode(delta(content="Hi"), STOP) == [TextPart("Hi"), END]

    def test_without_a_reason_to_stop_the_end_mark_is_enough(self) -> None:
        assert decode(delta(content="Hi"), DONE) == [TextPart("Hi"), END]

    @pytest.mark.parametrize("chunks", [(), (delta(content="Hi"),), (DONE,), (delta(), DONE)])
    def test_an_answer_that_is_cut_short_or_empty_is_broken(self, chunks: object) -> None:
        assert isinstance(chunks, tuple)
        with pytest.raises(StreamFault) as caught:
            decode(*chunks)
        assert caught.value.kind is FaultKind.BROKEN

    def test_reasoning_has_two_names(self) -> None:
        assert decode(
            delta(reasoning_content="a"), delta(reasoning="b"), delta(content="c"), STOP
        ) == [ReasoningPart("ab"), TextPart("c"), END]

    def test_content_in_pieces(self) -> None:
        thought = {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}
        pieces = delta(content=[thought, {"type": "text", "text": "yes"}])
        assert decode(pieces, STOP) == [ReasoningPart("hm"), TextPart("yes"), END]

    def test_a_whole_message_instead_of_a_delta(self) -> None:
        message = {"choices": [{"message": {"content": "Hi"}, "finish_reason": "stop"}]}
        assert decode(message) == [TextPart("Hi"), END]

    def test_other_choices_are_passed_over(self) -> None:
        second = {"choices": [{"index": 1, "delta": {"content": "no"}}]}
        assert decode(delta(content="yes"), second, STOP) == [TextPart("yes"), END]

    def test_a_refusal_is_text_and_says_so(self) -> None:
        assert decode(delta(refusal="No."), STOP) == [
            TextPart("No."),
            EndPart(StopReason.REFUSED),
        ]

    @pytest.mark.parametrize(
        ("finish", "stop"),
        [
            ("stop", StopReason.END),
            ("eos", StopReason.END),
            ("STOP", StopReason.END),
            ("length", StopReason.LENGTH),
            ("max_tokens", StopReason.LENGTH),
            ("content_filter", StopReason.REFUSED),
            ("tool_calls", StopReason.END),
            ("brand_new", StopReason.OTHER),
        ],
    )
    def test_reasons_to_stop(self, finish: str, stop: StopReason) -> None:
        assert decode(delta(content="x"), delta(finish))[-1] == EndPart(stop)

    def test_an_empty_reason_to_stop_is_none(self) -> None:
        chunks = delta("", content="a"), delta("", content="b"), STOP
        assert decode(*chunks) == [TextPart("ab"), END]

    @pytest.mark.parametrize("finish", ["error", "insufficient_system_resource", "abort"])
    def test_some_reasons_are_failures(self, finish: str) -> None:
        with pytest.raises(StreamFault) as caught:
            decode(delta(content="x"), delta(finish))
        assert caught.value.kind is FaultKind.SERVER

    @pytest.mark.parametrize(
        ("error", "kind"),
        [
            ({"message": "slow down", "type": "rate_limit_error"}, FaultKind.RATE),
            ({"message": "slow down", "code": 429}, FaultKind.RATE),
            ({"message": "too long", "code": "context_length_exceeded"}, FaultKind.CONTEXT),
            ({"message": "prompt is too long: 9 > 8", "type": "x"}, FaultKind.CONTEXT),
            ({"message": "oops", "type": "server_error"}, FaultKind.SERVER),
            ({"message": "pay", "code": "insufficient_quota"}, FaultKind.CREDIT),
            ({"message": "no", "type": "invalid_request_error"}, FaultKind.REFUSED),
            ({"message": "no", "code": 401}, FaultKind.KEY),
            ("just text", FaultKind.SERVER),
            ({}, FaultKind.SERVER),
        ],
    )
    def test_an_error_inside_the_stream(self, error: object, kind: FaultKind) -> None:
        with pytest.raises(StreamFault) as caught:
            decode(delta(content="x"), {"error": error})
        assert caught.value.kind is kind
        assert caught.value.message

    def test_a_null_error_is_none(self) -> None:
        assert decode({**delta(content="x"), "error": None}, STOP)[0] == TextPart("x")

    @pytest.mark.parametrize("data", [b"{", b"<html>", b"[]", b'{"choices": 7}', b"\xff\xfe"])
    def test_nonsense_is_broken(self, data: bytes) -> None:
        with pytest.raises(StreamFault) as caught:
            decode(data)
        assert caught.value.kind is FaultKind.BROKEN

    def test_half_a_character_is_replaced(self) -> None:
        broken = b'{"choices":[{"delta":{"content":"a' + b"\xe4\xb8" + b'b"}}]}'
        assert decode(broken, STOP)[0] == TextPart("a�b")

    def test_numbers_as_text_are_read(self) -> None:
        chunk = {"choices": [{"index": "0", "delta": {"content": "x"}}]}
        assert decode(chunk, STOP)[0] == TextPart("x")


class TestCalls:
    def test_in_pieces(self) -> None:
        assert decode(
            call(index=0, id="c1", name="read", arguments=""),
            call(index=0, arguments='{"a'),
            call(index=0, arguments='":1}'),
            delta("tool_calls"),
        ) == [CallPart(0, "c1", "read", '{"a":1}'), CALLED]

    def test_in_parallel_and_interleaved(self) -> None:
        parts = decode(
            call(index=0, id="c1", name="read"),
            call(index=1, id="c2", name="write"),
            call(index=0, arguments="{}"),
            call(index=1, arguments="[]"),
            delta("tool_calls"),
        )
        assert parts == [
            CallPart(0, "c1", "read"),
            CallPart(1, "c2", "write"),
            CallPart(0, arguments="{}"),
            CallPart(1, arguments="[]"),
            CALLED,
        ]

    def test_without_an_index(self) -> None:
        assert decode(
            call(id="c1", name="read", arguments="{"),
            call(arguments="}"),
            call(id="c2", name="read", arguments="{"),
            call(id="c2", arguments="}"),
            delta("stop"),
        ) == [CallPart(0, "c1", "read", "{}"), CallPart(1, "c2", "read", "{}"), CALLED]

    def test_without_index_and_id(self) -> None:
        assert decode(
            call(name="read", arguments="{}"), call(name="write", arguments="{}"), STOP
        ) == [CallPart(0, "made", "read", "{}"), CallPart(1, "made", "write", "{}"), CALLED]

    def test_id_and_name_in_every_piece(self) -> None:
        pieces = [call(index=0, id="c1", name="read", arguments=a) for a in ("{", "}")]
        assert decode(*pieces, STOP) == [CallPart(0, "c1", "read", "{}"), CALLED]

    def test_several_calls_under_one_index(self) -> None:
        pieces = [call(index=0, id=i, name="read", arguments="{}") for i in ("c1", "c2")]
        assert decode(*pieces, STOP) == [
            CallPart(0, "c1", "read", "{}"),
            CallPart(1, "c2", "read", "{}"),
            CALLED,
        ]

    def test_arguments_as_an_object_or_missing(self) -> None:
        assert decode(
            call(index=0, id="c1", name="a", arguments={"x": 1}),
            call(index=1, id="c2", name="b"),
            call(index=2, id="c3", name="c", arguments=None),
            STOP,
        ) == [
            CallPart(0, "c1", "a", '{"x":1}'),
            CallPart(1, "c2", "b"),
            CallPart(2, "c3", "c"),
            CallPart(1, arguments="{}"),
            CallPart(2, arguments="{}"),
            CALLED,
        ]

    def test_in_the_old_style(self) -> None:
        assert decode(
            delta(function_call={"name": "read", "arguments": "{"}),
            delta(function_call={"arguments": "}"}),
            delta("function_call"),
        ) == [CallPart(0, "made", "read", "{}"), CALLED]

    def test_cut_off_by_the_length_says_so(self) -> None:
        parts = decode(call(index=0, id="c1", name="read", arguments='{"a'), delta("length"))
        assert parts[-1] == EndPart(StopReason.LENGTH)
