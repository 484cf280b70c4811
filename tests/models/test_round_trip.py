"""Each dialect reads what the fault server writes in it, however the bytes are cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bargein.contracts.model import (
    AssistantMessage,
    CallPart,
    EndPart,
    ModelRequest,
    Part,
    ReasoningPart,
    StopReason,
    Text,
    TextPart,
    ToolCall,
    ToolMessage,
    ToolResult,
    Usage,
    UsagePart,
    UserMessage,
)
from bargein.net.sse import EventParser
from bargein.testing.fault_answers import events_of
from tests.models.harness import DIALECTS, joined

SOME_TEXT = st.text(min_size=1, max_size=12)
SAID = st.one_of(
    st.builds(TextPart, SOME_TEXT),
    st.builds(ReasoningPart, SOME_TEXT),
)


@st.composite
def answers(draw: st.DrawFn) -> list[Part]:
    parts: list[Part] = list(draw(st.lists(SAID, max_size=6)))
    calls = draw(st.integers(0, 3))
    for index in range(calls):
        parts.append(CallPart(index, f"call_{index}", f"tool_{index}"))
        pieces = draw(st.lists(SOME_TEXT, min_size=1, max_size=4))
        parts += [CallPart(index, arguments=piece) for piece in pieces]
    cached = draw(st.integers(0, 50))
    usage = Usage(cached + draw(st.integers(0, 99)), draw(st.integers(0, 99)), cached)
    stop = StopReason.TOOL_CALLS if calls else StopReason.END
    return [*parts, UsagePart(usage), EndPart(draw(st.sampled_from([stop, StopReason.LENGTH])))]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_half_characters_are_replaced_in_a_request(dialect: str) -> None:
    half = "a\ud800b"
    request = ModelRequest(
        system=half,
        messages=(
            UserMessage((Text(half),)),
            AssistantMessage((Text(half), ToolCall("c", half, f'{{"x":"{half}"}}'))),
            ToolMessage((ToolResult("c", (Text(half),)),)),
        ),
    )
    body = DIALECTS[dialect]().encode("m", request).decode()
    assert body.count("a?b") >= 4


@pytest.mark.parametrize("dialect", DIALECTS)
@given(parts=answers(), size=st.integers(1, 64))
def test_parts_survive_the_way_over_the_wire(dialect: str, parts: list[Part], size: int) -> None:
    data = b"".join(events_of(dialect, parts))
    decoder, parser = DIALECTS[dialect]().decoder(), EventParser()
    out: list[Part] = []
    for start in range(0, len(data), size):
        for event in parser.feed(data[start : start + size]):
            decoder.feed(event, out)
    assert decoder.finished
    decoder.end(out)
    assert joined(out) == joined(parts)
    assert UsagePart(decoder.usage or Usage()) == parts[-2]
