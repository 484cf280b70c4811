"""Nothing hides in what people decide by, and letters of all languages stay."""

from __future__ import annotations

import time
import unicodedata

import pytest

from bargein.contracts.visible import visible


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("rm -rf build", "rm -rf build"),
        ("one\n\ttwo", "one\n\ttwo"),
        ("a\u202eb", "a<U+202E>b"),
        ("\u2066x\u2069", "<U+2066>x<U+2069>"),
        ("\u200ezero\u200bwidth\ufeff", "<U+200E>zero<U+200B>width<U+FEFF>"),
        ("\x1b[31mred\x07\x9b", "<U+001B>[31mred<U+0007><U+009B>"),
        ("over\rwritten\b", "over<U+000D>written<U+0008>"),
        ("a\u00a0b\u3000c\u2028d", "a<U+00A0>b<U+3000>c<U+2028>d"),
        ("fill\u3164er\u2800", "fill<U+3164>er<U+2800>"),
        ("tag\U000e0041", "tag<U+E0041>"),
        # Other forms of ASCII, and letters that look like ours in a word of ours.
        ("\uff52\uff4d -rf", "<U+FF52><U+FF4D> -rf"),
        ("https:\u2215\u2215x", "https:<U+2215><U+2215>x"),
        ("p\u0430ypal.com", "p<U+0430>ypal.com"),
        ("\u0430pple.com", "<U+0430>pple.com"),
        ("\u03bfpen", "<U+03BF>pen"),
        # Marks beyond what letters need.
        ("e\u0301", "e\u0301"),
        ("a\u0301\u0302\u0303\u0304", "a\u0301\u0302<U+0303><U+0304>"),
    ],
)
def test_what_deceives_is_named(text: str, shown: str) -> None:
    assert visible(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        "Grüße, señor, façade, żółć",
        "привет мир",
        "Καλημέρα κόσμε",
        "日本語のテキスト と 한국어 与 中文",
        "文件file.txt",
        "שלום",
        "مرحبا",
        "नमस्ते",
        "👍 🎉 ❤\ufe0f",
        "“quotes” \u2013 and — dashes",
        "½ \u00d7 2² ° € £",
    ],
)
def test_languages_and_emoji_stay(text: str) -> None:
    assert visible(text) == text


def test_no_format_or_control_character_is_left_of_all_of_unicode() -> None:
    for number in range(0x110000):
        character = chr(number)
        if unicodedata.category(character) in ("Cf", "Cc", "Zl", "Zp", "Cs") and number not in (
            9,
            10,
        ):
            assert visible(character) == f"<U+{number:04X}>"


def test_it_takes_time_in_proportion() -> None:
    for piece in ("\u0430", "\u0430-", "a\u0430", "\u202e", "\u0301", "日"):
        began_at = time.process_time()
        visible(piece * 30_000)
        assert time.process_time() - began_at < 5
