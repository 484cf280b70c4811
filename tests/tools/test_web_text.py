"""Text from HTML: what is kept, and that nothing breaks the parser."""

from __future__ import annotations

import encodings.aliases
import time

import pytest

from bargein.tools.web_text import decode, html_to_text

PAGE = """<!doctype html><html><head><title> A  page &amp; more </title>
<style>p { color: red }</style><script>alert("<p>no</p>")</script></head>
<body><nav><a href="/home">Home</a> <a href="#top">Top</a></nav>
<h1>Big   <em>heading</em></h1><p>One
two <b>three</b>.<p>Next<br>line <img src=x alt="a cat"><img src=y>
<ul><li>first<li>second <a href="sub/x?a=1&amp;b=2">with
 link</a></ul>
<pre>def f():
    return 1</pre>
<table><tr><th>a<th>b</tr><tr><td>1</td><td>2</td></tr></table>
<a href="javascript:alert(1)">no link</a> <a href="mailto:x@y">mail</a>
<noscript>hidden</noscript><svg><text>hidden</text></svg>
</body></html>"""
TEXT = """[Home](https://example.org/home) Top

# Big heading

One two three.

Next
line [image: a cat]

- first
- second [with link](https://example.org/dir/sub/x?a=1&b=2)

def f():
    return 1

a | b
1 | 2
no link mail"""


def test_a_page_is_read_as_a_person_would() -> None:
    assert html_to_text(PAGE, "https://example.org/dir/page") == ("A page & more", TEXT)


@pytest.mark.parametrize(
    "html",
    [
        "",
        "plain",
        "<",
        "<a",
        "</a></a></p></script>",
        "<script>never closed",
        "<title>never closed",
        "<a href='http://[bad'>x</a>",
        "<!--",
        "<![CDATA[x",
        "<p " * 100,
        "<div>" * 10_000 + "deep",
        "&#xD800; &#99999999; &bogus;",
        "<base href='//['><a href='x'>x</a>",
    ],
)
def test_broken_pages_do_not_break_it(html: str) -> None:
    html_to_text(html, "https://example.org/")


def test_the_charset_is_the_servers_the_pages_or_utf_8() -> None:
    assert decode("ä".encode("latin-1"), "latin-1") == "ä"
    assert decode(b'<meta charset="iso-8859-1">\xe4', None).endswith("ä")
    content = b'<META http-equiv="Content-Type" content="text/html; charset=windows-1252">\x80'
    assert decode(content, None).endswith("€")
    assert decode("ä".encode(), None) == "ä"
    assert decode(b"\xff", None) == "\ufffd"
    for odd in ("no-such-charset", "rot13", "base64", "zlib", "undefined", "idna", "\0"):
        assert "x" in decode(b"x", odd)


@pytest.mark.parametrize(
    "charset", sorted({*encodings.aliases.aliases.values(), "punycode", "idna"})
)
def test_no_charset_that_a_server_names_takes_long(charset: str) -> None:
    """Pages that are no HTML are decoded in the event loop."""
    content = b"a-" + b"b9" * (1 << 19)
    began = time.process_time()
    assert decode(content, charset)
    assert time.process_time() - began < 20
