"""The estimate of tokens: how far from the truth it is, and that it is corrected."""

# ruff: noqa: RUF001, E501 - other scripts have letters like ours, and wider ones

from __future__ import annotations

import msgspec
import pytest

from bargein.contracts.model import (
    AssistantMessage,
    Image,
    ModelRequest,
    Text,
    ToolCall,
    ToolMessage,
    ToolResult,
    ToolSchema,
    Usage,
    UserMessage,
)
from bargein.session.token_estimate import (
    IMAGE_TOKENS,
    ratio_after,
    tokens_besides,
    tokens_of_message,
    tokens_of_text,
)

ENGLISH = (
    "The chairman said yesterday that the talks about the new agreement had made progress faster "
    "than anybody had expected. For larger companies this means that they will have to finish "
    "their checks earlier."
)
CODE = (
    "def tokens_of_message(message):\n    if isinstance(message, ToolMessage):\n        contents = "
    "[part for result in message.results for part in result.content]\n        return "
    "sum(tokens_of(part) for part in contents)\n    return 4 + len(message.content)\n"
)
JSON = (
    '[{"id": 17, "name": "item-17", "ok": false, "size": 629, "path": "/srv/data/0017.bin"}, {"id":'
    ' 18, "name": "item-18", "ok": true, "size": 666, "path": "/srv/data/0018.bin"}]'
)
LISTING = (
    "-rw-r--r-- 1 root root  4096 Nov 15 23:35 README.md\n-rwxr-xr-x 1 root root 18231 Nov 16 00:03"
    " build.sh\ndrwxr-xr-x 2 root root   512 Oct  1 12:00 tests\n"
)
RUSSIAN = (
    "Председатель вчера заявил, что переговоры о новом соглашении продвигаются неожиданно быстро."
)
CHINESE = "主席昨天表示，关于新协议的谈判进展得出乎意料地快。对于大型企业来说，这意味着今后必须更早地完成检查工作。"


@pytest.mark.parametrize(
    ("text", "small", "large"),
    [
        # As a vocabulary of 100,000 and one of 200,000 tokens in wide use cut them.
        (ENGLISH, 35, 35),
        (CODE, 54, 54),
        (JSON, 74, 74),
        (LISTING, 70, 70),
        (RUSSIAN, 42, 21),
        (CHINESE, 61, 36),
    ],
    ids=["english", "code", "json", "listing", "russian", "chinese"],
)
def test_the_error_is_as_stated(text: str, small: int, large: int) -> None:
    for truth in (small, large):
        assert 0.6 <= tokens_of_text(text) / truth <= 2.2
    assert 0.8 <= tokens_of_text(text) / small <= 1.6


def test_whatever_is_in_a_request_counts() -> None:
    empty = ModelRequest(messages=())
    tool = ToolSchema("read", "Reads a file.", msgspec.Raw(b'{"type": "object"}'))
    assert tokens_besides(msgspec.structs.replace(empty, system=ENGLISH)) > 30
    assert tokens_besides(msgspec.structs.replace(empty, tools=(tool,))) > 10
    image = UserMessage((Image("image/png", b"..."),))
    assert tokens_of_message(image) >= IMAGE_TOKENS
    call = AssistantMessage((ToolCall("a", "read", '{"path": "notes.txt"}'),))
    assert tokens_of_message(call) > 10
    result = ToolMessage((ToolResult("a", (Text(ENGLISH),)),))
    assert tokens_of_message(result) > 30


def test_half_of_a_character_is_no_error() -> None:
    assert tokens_of_text("\ud800") > 0


def test_the_correction_is_bounded_and_only_by_what_was_really_counted() -> None:
    assert ratio_after(100.0, Usage(150)) == 1.5
    assert ratio_after(100.0, Usage(1_000_000)) == 4.0
    assert ratio_after(100.0, Usage(1)) == 0.25
    assert ratio_after(100.0, Usage(150, estimated=True)) is None
    assert ratio_after(100.0, Usage()) is None
    assert ratio_after(0.0, Usage(10)) is None
