"""Completes the site that mkdocs builds from this folder.

- Pages that are kept elsewhere in the repository become pages here: the README, the changelog, the
  page on deploying.
- The reference lists every public name, generated from `bargein.__all__` and rendered from
  docstrings. A page shows the examples.
- `llms.txt` lists all pages, for programs that read the documentation.
- Links that leave this folder lead to those pages. A link to any other file of the repository
  becomes plain text, because the site has no such file.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath
from typing import TYPE_CHECKING, Any

from mkdocs.structure.files import File, Files

import bargein

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
KEPT_ELSEWHERE = {
    "about.md": "README.md",
    "changelog.md": "CHANGELOG.md",
    "deploy.md": "deploy/README.md",
    "security.md": "SECURITY.md",
}
PAGE_OF = {path: page for page, path in KEPT_ELSEWHERE.items()} | {"examples": "examples.md"}
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")
FENCE = re.compile(r"(^```.*?^```$)", flags=re.DOTALL | re.MULTILINE)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for page, path in KEPT_ELSEWHERE.items():
        files.append(File.generated(config, page, content=(ROOT / path).read_text()))
    files.append(File.generated(config, "reference.md", content=reference()))
    files.append(File.generated(config, "examples.md", content=examples()))
    files.append(File.generated(config, "llms.txt", content=llms_txt(config)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    uri = page.file.src_uri
    path = KEPT_ELSEWHERE.get(uri, f"docs/{uri}")
    pieces = FENCE.split(markdown)
    for at in range(0, len(pieces), 2):
        pieces[at] = LINK.sub(lambda found: _link(found, path, uri), pieces[at])
    return "".join(pieces)


def _link(found: re.Match[str], path: str, uri: str) -> str:
    """The link as it has to be on the site. `path` is where the page is in the repository."""
    picture, text, link = found.groups()
    target, _, anchor = link.partition("#")
    if "://" in link or not target or link.startswith("mailto:"):
        return found[0]
    target = normpath(str(PurePosixPath(path).parent / target))
    if target in PAGE_OF:
        target = PAGE_OF[target]
    elif target.startswith("docs/"):
        target = target.removeprefix("docs/")
    elif target == "docs":
        target = "README.md"
    else:
        return text
    there = relpath(target, str(PurePosixPath(uri).parent))
    return f"{picture}[{text}]({there}{'#' + anchor if anchor else ''})"


def reference() -> str:
    """Every public name, by the module that it is declared in."""
    homes = sorted(bargein._HOMES.items(), key=lambda item: (item[1], item[0]))
    lines = [
        "# Reference",
        "",
        "All that can be imported from `bargein`, from the docstrings.",
        "[Public names](api.md) is the short list.",
    ]
    for home, names in groupby(homes, key=lambda item: item[1]):
        lines += ["", f"## `{home}`", ""]
        lines += [f"::: {home}.{name}\n" for name, _ in names]
    return "\n".join(lines)


def examples() -> str:
    lines = ["# Examples", "", "Whole programs. `./dev python examples/NAME.py` runs one."]
    for path in sorted((ROOT / "examples").glob("*.py")):
        text = path.read_text()
        about = (ast.get_docstring(ast.parse(text)) or "").partition("\n\n")[0]
        lines += ["", f"## {path.stem}", "", about, "", "```python", text.rstrip(), "```"]
    return "\n".join(lines) + "\n"


def llms_txt(config: MkDocsConfig) -> str:
    lines = [f"# {config.site_name}", "", f"> {config.site_description}"]
    for section, pages in _sections(config.nav or []):
        lines += ["", f"## {section}", ""]
        for title, page in pages:
            url = page.removesuffix("README.md").removesuffix(".md").rstrip("/")
            lines.append(f"- [{title}]({url}/)" if url else f"- [{title}](.)")
    return "\n".join(lines) + "\n"


def _sections(nav: list[Any]) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Sections of the navigation with their pages; pages outside of any come first."""
    alone: list[tuple[str, str]] = []
    sections: list[tuple[str, list[tuple[str, str]]]] = []
    for entry in nav:
        for title, content in entry.items():
            if isinstance(content, str):
                alone.append((title, content))
            else:
                pages = [pair for each in content for pair in each.items()]
                sections.append((title, pages))
    yield "Start", alone
    yield from sections
