"""Reads the description of a function and of its parameters from its docstring.

Three layouts are understood: `Args:` with indented names, `Parameters` underlined, and
`:param name: text`. The text before the parameters is the description. Everything after them
(`Returns:` and so on) is for people who read the code and is ignored.
"""

import inspect
import re
from dataclasses import dataclass, field

_GOOGLE_SECTION = re.compile(
    r"^(Args|Arguments|Parameters|Params|Returns?|Raises|Yields?|Examples?|Notes?):\s*$"
)
_GOOGLE_ENTRY = re.compile(r"^\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)$")
_NUMPY_ENTRY = re.compile(r"^\*{0,2}(\w+(?:\s*,\s*\w+)*)\s*(?::.*)?$")
_UNDERLINE = re.compile(r"^-{3,}\s*$")
_FIELD = re.compile(r"^:(\w+)\s*([^:]*):\s*(.*)$")
_ABOUT_PARAMETERS = {"Args", "Arguments", "Parameters", "Params"}


@dataclass(slots=True)
class Documented:
    description: str = ""
    parameters: dict[str, str] = field(default_factory=dict)


def read_docstring(text: str | None) -> Documented:
    lines = inspect.cleandoc(text or "").splitlines()
    for number, line in enumerate(lines):
        above = lines[:number]
        google = _GOOGLE_SECTION.match(line)
        if google:
            return _with_entries(above, _google_entries(lines[number:]))
        if _UNDERLINE.match(line) and above:
            return _with_entries(above[:-1], _numpy_entries(lines[number - 1 :]))
        if _FIELD.match(line):
            return _with_entries(above, _field_entries(lines[number:]))
    return _with_entries(lines, {})


def _with_entries(above: list[str], entries: dict[str, list[str]]) -> Documented:
    parameters = {name: " ".join(" ".join(words).split()) for name, words in entries.items()}
    return Documented("\n".join(above).strip(), parameters)


def _google_entries(lines: list[str]) -> dict[str, list[str]]:
    entries: dict[str, list[str]] = {}
    inside = False
    indent = 0
    words: list[str] = []
    for line in lines:
        section = _GOOGLE_SECTION.match(line)
        if section:
            inside = section[1] in _ABOUT_PARAMETERS
            indent = 0
            continue
        if not inside or not line.strip():
            continue
        depth = len(line) - len(line.lstrip())
        indent = indent or depth
        entry = _GOOGLE_ENTRY.match(line.strip())
        if depth <= indent and entry:
            words = entries.setdefault(entry[1], [])
            words.append(entry[2])
        else:
            words.append(line.strip())
    return entries


def _numpy_entries(lines: list[str]) -> dict[str, list[str]]:
    entries: dict[str, list[str]] = {}
    inside = False
    words: list[str] = []
    for line, below in zip(lines, [*lines[1:], ""], strict=True):
        if _UNDERLINE.match(line):
            continue
        if _UNDERLINE.match(below):
            inside = line.strip() in _ABOUT_PARAMETERS
            continue
        if not inside or not line.strip():
            continue
        entry = _NUMPY_ENTRY.match(line)
        if entry:
            words = []
            entries.update(dict.fromkeys(re.split(r"\s*,\s*", entry[1]), words))
        else:
            words.append(line.strip())
    return entries


def _field_entries(lines: list[str]) -> dict[str, list[str]]:
    entries: dict[str, list[str]] = {}
    words: list[str] = []
    for line in lines:
        entry = _FIELD.match(line)
        if entry is None:
            words.append(line.strip())
            continue
        words = []
        if entry[1] in ("param", "parameter", "arg", "argument") and entry[2].strip():
            # `:param int count:` names the type first.
            entries[entry[2].split()[-1]] = words
            words.append(entry[3])
    return entries
