"""What was counted of a conversation is not counted again, and the sum is the same."""

from __future__ import annotations

import random

import msgspec
import pytest

from bargein.contracts.model import (
    AssistantMessage,
    ModelMessage,
    ModelRequest,
    Text,
    ToolSchema,
    UserMessage,
)
from bargein.session import tokens
from bargein.session.tokens import RequestTokens, tokens_of_request


def said(number: int) -> ModelMessage:
    words = (Text(f"message {number} " * (1 + number % 7)),)
    return AssistantMessage(words) if number % 2 else UserMessage(words)


def test_a_conversation_that_grows_shrinks_and_is_rewritten_is_counted_right() -> None:
    chance = random.Random(3)
    counted = RequestTokens()
    messages: list[ModelMessage] = []
    for number in range(300):
        kind = chance.random()
        if kind < 0.1:
            del messages[chance.randrange(len(messages) + 1) :]
        elif kind < 0.2 and messages:
            messages[chance.randrange(len(messages))] = said(number + 1000)
        messages.append(said(number))
        request = ModelRequest(tuple(messages), "be brief" * (number % 3), tools=())
        assert counted.of(request) == pytest.approx(tokens_of_request(request))


def test_tools_and_instructions_count_each_time() -> None:
    tool = ToolSchema("look", "looks at something", msgspec.Raw(b"{}"))
    request = ModelRequest((said(0),), "be brief", (tool,))
    counted = RequestTokens()
    assert counted.of(request) == counted.of(request) == tokens_of_request(request)


def test_only_what_is_new_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[ModelMessage] = []
    count = tokens.tokens_of_message

    def watched(message: ModelMessage) -> float:
        looked_at.append(message)
        return count(message)

    monkeypatch.setattr(tokens, "tokens_of_message", watched)
    counted = RequestTokens()
    messages = [said(number) for number in range(1000)]
    counted.of(ModelRequest(tuple(messages)))
    looked_at.clear()
    messages[-1] = said(2000)
    messages.append(said(1001))
    counted.of(ModelRequest(tuple(messages)))
    assert looked_at == messages[-2:]
