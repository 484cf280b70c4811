"""Translates names of keys in settings, such as `ctrl-x`, `alt-up` or `f5`, into the line editor's
names. Pure."""

_NAMED = {
    "enter": "enter",
    "tab": "tab",
    "shift-tab": "s-tab",
    "escape": "escape",
    "space": " ",
    "backspace": "c-h",
    **{name: name for name in ("up", "down", "left", "right", "home", "end")},
    **{name: name for name in ("pageup", "pagedown", "insert", "delete")},
    **{f"f{number}": f"f{number}" for number in range(1, 13)},
}
_WITH_CONTROL = {name: f"c-{name}" for name in ("up", "down", "left", "right", "home", "end")}
# A terminal sends the same byte for both keys of each pair.
_SAME = {"ctrl-i": "tab", "ctrl-m": "enter", "ctrl-h": "backspace", "ctrl-[": "escape"}


class KeyNameWrong(ValueError):
    """No key has this name; the message says how to write keys."""


def key_sequence(name: object) -> tuple[str, ...]:
    """Returns the line editor's names for a key. Terminals send `alt-` as Escape before the key."""
    if not isinstance(name, str) or not name:
        raise KeyNameWrong(f"{name!r} is no key; {_HELP}")
    lower = name.lower()
    if lower in _SAME:
        raise KeyNameWrong(f"a terminal cannot tell {name} from {_SAME[lower]}; name that instead")
    if lower.startswith("alt-"):
        rest = lower.removeprefix("alt-")
        if len(rest) == 1 and rest.isprintable():
            return "escape", rest
        if rest in ("escape", "") or rest.startswith("alt-"):
            raise KeyNameWrong(f"{name!r} is no key; {_HELP}")
        return "escape", *key_sequence(rest)
    if lower in _NAMED:
        return (_NAMED[lower],)
    if lower.startswith("ctrl-"):
        rest = lower.removeprefix("ctrl-")
        if rest in _WITH_CONTROL:
            return (_WITH_CONTROL[rest],)
        if len(rest) == 1 and rest.isascii() and (rest.isalpha() or rest in "@\\]^_"):
            return (f"c-{rest}",)
    if len(lower) == 1:
        raise KeyNameWrong(f"{name!r} alone is needed for writing; put ctrl- or alt- before it")
    raise KeyNameWrong(f"{name!r} is no key; {_HELP}")


def shown(name: str) -> str:
    """Returns a key as it is printed on keyboards: `ctrl-c` as `Ctrl-C`."""
    return "Esc" if name == "escape" else "-".join(part.capitalize() for part in name.split("-"))


_HELP = "keys are written like ctrl-x, alt-x, alt-up, f5, tab, escape, enter, pageup"
