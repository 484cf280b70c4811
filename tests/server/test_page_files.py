"""The files of the page: small, complete, without a way to make markup of text, and shipped."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "src" / "bargein" / "server" / "page"
SCRIPTS = sorted(PAGE.rglob("*.js"))
STYLES = sorted(PAGE.rglob("*.css"))

LINES_MAX = 300
LINE_MAX = 100
FORBIDDEN = (
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|createContextualFragment"
    r"|\beval\(|new Function|setAttribute\(\"(on|style)|javascript:"
)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.relative_to(PAGE).as_posix())
def test_a_script_is_small_and_makes_no_markup_of_text(path: Path) -> None:
    text = path.read_text()
    lines = text.splitlines()
    assert len(lines) <= LINES_MAX
    assert max(map(len, lines)) <= LINE_MAX
    assert text.startswith("//"), "it begins with what it is for"
    assert re.search(FORBIDDEN, text) is None
    assert "TODO" not in text


@pytest.mark.parametrize(
    "path", [*SCRIPTS, *STYLES, PAGE / "index.html"], ids=lambda path: path.name
)
def test_nothing_is_loaded_from_elsewhere(path: Path) -> None:
    addresses = re.findall(r"https?://[^\s\"'`)]+", path.read_text())
    assert set(addresses) <= {"http://www.w3.org/2000/svg"}


def test_every_module_is_imported_and_preloaded() -> None:
    """Preloaded so that they come side by side and not one after the other."""
    index = (PAGE / "index.html").read_text()
    preloaded = re.findall(r'modulepreload" href="/static/([^"]+)"', index)
    modules = [path.relative_to(PAGE).as_posix() for path in SCRIPTS]
    assert sorted([*preloaded, "js/early.js", "js/main.js"]) == modules
    imported = {
        (path.parent / name).resolve()
        for path in SCRIPTS
        for name in re.findall(r'from "(\.[^"]+)"', path.read_text())
    }
    assert imported == {PAGE / name for name in preloaded}


def test_every_style_is_linked_and_has_no_inline_part() -> None:
    index = (PAGE / "index.html").read_text()
    linked = re.findall(r'stylesheet" href="/static/([^"]+)"', index)
    assert sorted(linked) == [path.relative_to(PAGE).as_posix() for path in STYLES]
    assert not re.search(r"<style|style=|<script>|\son[a-z]+=", index)


def test_every_colour_is_for_light_and_for_dark() -> None:
    """Said once for both, whether the system or the reader has chosen."""
    css = (PAGE / "css" / "base.css").read_text()
    (root,) = re.findall(r"^:root \{([^}]+)\}", css, re.MULTILINE)
    assert root.count("light-dark(") > 15
    for declaration in root.split(";"):
        plain = re.sub(r"light-dark\((?:[^()]|\([^()]*\))*\)", "", declaration)
        assert not re.search(r"#|rgb\(", plain), declaration
    (dark,) = re.findall(r'^:root\[data-theme="dark"\] \{([^}]+)\}', css, re.MULTILINE)
    assert dark.split() == ["color-scheme:", "dark;"]


def test_the_wheel_has_the_page(tmp_path: Path) -> None:
    builder = WheelBuilder(str(ROOT))
    (wheel,) = builder.build(directory=str(tmp_path), versions=["standard"])
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    files = [path for path in PAGE.rglob("*") if path.is_file()]
    assert len(files) > 40
    assert {path.relative_to(ROOT / "src").as_posix() for path in files} <= names
