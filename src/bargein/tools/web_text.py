"""Extracts text from HTML; keeps titles, headings, lists and links. Only the standard library.

Parsing a stranger's page may take long, so it happens in its own process: `main` reads one line of
JSON (`charset`, `url`) and then the page from standard input.
"""

import codecs
import json
import re
import sys
from html.parser import HTMLParser
from urllib.parse import urljoin

_SKIPPED = {"script", "style", "noscript", "template", "svg", "math", "iframe", "object", "canvas"}
_HEADINGS = {"h1": "# ", "h2": "## ", "h3": "### ", "h4": "#### ", "h5": "##### ", "h6": "###### "}
_BLOCKS = {
    *("p", "div", "section", "article", "header", "footer", "main", "aside", "nav", "ul", "ol"),
    *("table", "tr", "blockquote", "figure", "figcaption", "form", "fieldset", "dl", "dt", "dd"),
    *("address", "details", "summary", "hr", "pre", "li", *_HEADINGS),
}
_BLANKS = re.compile(r"[ \t\r\n\f\xa0]+")
_META_CHARSET = re.compile(rb"<meta[^>]{0,200}?charset=[\"']?([\w-]{1,40})", re.IGNORECASE)


class _Page(HTMLParser):
    def __init__(self, url: str) -> None:
        super().__init__(convert_charrefs=True)
        self.title = ""
        self._base = url
        self._lines: list[str] = []
        self._line: list[str] = []
        self._skipping: list[str] = []
        self._in_title = False
        self._verbatim = 0
        self._links: list[tuple[str, int]] = []

    def text(self) -> str:
        self.close()
        self._end_line()
        text = "\n".join(self._lines)
        return re.sub(r"\n{3,}", "\n\n", text).strip()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "base" and given.get("href"):
            self._base = _joined(self._base, given["href"] or "") or self._base
        if tag in _SKIPPED:
            self._skipping.append(tag)
        if self._skipping:
            return
        if tag == "title" and not self.title:
            self._in_title = True
        if tag in _BLOCKS:
            self._begin_block(tag)
        elif tag == "br":
            self._end_line()
        elif tag in ("td", "th") and any(self._line):
            self._line.append(" | ")
        elif tag == "a":
            self._links.append((given.get("href") or "", len(self._line)))
        elif tag == "img" and given.get("alt"):
            self._line.append(f"[image: {given['alt']}]")

    def _begin_block(self, tag: str) -> None:
        self._end_line()
        if tag in _HEADINGS or tag in ("p", "pre", "table", "ul", "ol", "blockquote"):
            self._lines.append("")
        if tag == "pre":
            self._verbatim += 1
        self._line.append(_HEADINGS.get(tag, "- " if tag == "li" else ""))

    def handle_endtag(self, tag: str) -> None:
        if tag in _SKIPPED:
            # An end tag without a start tag is ignored.
            if tag in self._skipping:
                del self._skipping[self._skipping.index(tag) :]
            return
        if self._skipping:
            return
        if tag == "title":
            self._in_title = False
        elif tag == "a" and self._links:
            self._end_link(*self._links.pop())
        elif tag in _BLOCKS:
            self._end_line()
            if tag == "pre":
                self._verbatim = max(0, self._verbatim - 1)
            if tag in _HEADINGS:
                self._lines.append("")

    def _end_link(self, href: str, began_at: int) -> None:
        words = _BLANKS.sub(" ", "".join(self._line[began_at:])).strip()
        target = _joined(self._base, href.strip())
        if words and target.startswith(("http://", "https://")) and not href.startswith("#"):
            del self._line[began_at:]
            self._line.append(f"[{words}]({target})")

    def handle_data(self, data: str) -> None:
        if self._skipping:
            return
        if self._in_title:
            self.title = (self.title + data)[:500]
        elif self._verbatim:
            first, *rest = data.split("\n")
            self._line.append(first)
            for line in rest:
                self._end_line()
                self._line.append(line)
        else:
            self._line.append(data)

    def _end_line(self) -> None:
        text = "".join(self._line)
        # An open link may have begun on the line that ends here.
        self._links = [(href, 0) for href, _ in self._links]
        self._line.clear()
        shown = text.rstrip() if self._verbatim else _BLANKS.sub(" ", text).strip()
        if shown and not (shown in ("-", "|") or set(shown) == {"#"}):
            self._lines.append(shown)


def _joined(base: str, href: str) -> str:
    try:
        return urljoin(base, href)
    except ValueError:
        return ""


def html_to_text(html: str, url: str) -> tuple[str, str]:
    """Returns the title and the text of a page."""
    page = _Page(url)
    page.feed(html)
    text = page.text()
    return _BLANKS.sub(" ", page.title).strip(), text


# Python calls these text encodings. No page uses them, and decoding a few megabytes with the first
# takes hours.
_NO_CHARSETS = {"punycode", "idna", "unicode-escape", "raw-unicode-escape", "utf-7"}


def decode(content: bytes, charset: str | None) -> str:
    """Decodes with the given charset, or the page's own, or UTF-8. Never fails, and takes time
    proportional to the length."""
    if charset is None:
        found = _META_CHARSET.search(content[:4096])
        charset = found[1].decode() if found else "utf-8"
    try:
        name = codecs.lookup(charset).name
    except (LookupError, ValueError):
        name = "utf-8"
    if name in _NO_CHARSETS:
        name = "utf-8"
    try:
        return content.decode(name, "replace")
    except (LookupError, UnicodeError, ValueError):
        # Some Python codecs are not character sets.
        return content.decode("utf-8", "replace")


def main() -> None:
    given = json.loads(sys.stdin.buffer.readline())
    title, text = html_to_text(decode(sys.stdin.buffer.read(), given["charset"]), given["url"])
    heading = f"{title}\n\n" if title else ""
    sys.stdout.buffer.write((heading + text).encode("utf-8", "replace"))
    sys.stdout.buffer.flush()
