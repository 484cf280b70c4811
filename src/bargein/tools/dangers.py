"""What a shell command, or code that starts one, may destroy, publish or take over. Pure.

`look_at` names the worst thing it sees. It reads commands through the usual wrappers (`sudo`,
`env`, `xargs`, `bash -c` and the like), a few levels deep.
"""

import itertools
import re
from collections.abc import Callable, Iterator
from posixpath import basename, normpath

import msgspec

from bargein.tools.shell import Command, read_commands

_DEPTH_MAX = 4
_SHELLS = {"sh", "bash", "zsh", "dash", "ksh", "fish"}
_INTERPRETERS = re.compile(r"^(?:python|perl|ruby|node|php)[\d.]*$")
_FETCHERS = {"curl", "wget", "fetch", "aria2c"}
_WRAPPERS = {
    *("env", "nohup", "time", "nice", "ionice", "exec", "command", "builtin", "xargs", "timeout"),
    *("stdbuf", "setsid", "then", "do", "else", "if", "elif", "while", "until", "!", "{"),
}
_OTHER_USER = {"sudo", "doas", "su", "pkexec"}
_ASSIGNMENT = re.compile(r"^\w+=")
_NUMBER_OR_PLACEHOLDER = re.compile(r"^(?:\d+(?:\.\d+)?[smhd]?|\{\})$")
_FETCHED_INSIDE = re.compile(r"^\s*(?:\$\(|<\(|`)\s*(?:curl|wget)\b")
_SYSTEM_TREES = re.compile(
    r"^/(?:bin|boot|dev|etc|home|lib\w*|opt|proc|root|sbin|srv|sys|usr|var)$"
)
_HOME = re.compile(r"^(?:~|\$HOME|\$\{HOME\})(?:/\*?)?$")
_SYSTEM_FILES = re.compile(r"^/(?:etc|boot|sys|proc/sys|usr|lib\w*|s?bin)/")
_DISK = re.compile(r"^/dev/(?:sd|hd|vd|xvd|nvme|mmcblk|disk|mapper/)")
_KEYS = re.compile(r"(?:~|\$HOME|/root|/home/[\w.-]+)/\.(?:ssh|gnupg|aws|kube|docker|netrc)\b")
_DELETES_ROWS = re.compile(r"(?i)\b(?:drop\s(?:table|database|schema|user)|truncate\stable)\b")
_CODE_DELETES = re.compile(r"\brmtree\s?\(")


class Danger(msgspec.Struct, frozen=True):
    """`catastrophe`: no sane request needs this. Otherwise: somebody should be asked."""

    why: str
    catastrophe: bool = False


def look_at(text: str, *, as_code: bool = False) -> Danger | None:
    """The worst danger in a command, or None."""
    found: Danger | None = None
    for danger in _dangers(text, as_code, 0):
        if danger.catastrophe:
            return danger
        found = found or danger
    return found


def _dangers(text: str, as_code: bool, depth: int) -> Iterator[Danger]:
    if ":(){" in "".join(text.split()):
        yield Danger("it is a fork bomb", catastrophe=True)
    if as_code and _CODE_DELETES.search(text):
        yield Danger("it deletes directories")
    commands = read_commands(text, as_code=as_code)
    before: list[str] = []
    for command in commands:
        words, other_user = _unwrapped(command.words)
        if other_user:
            yield Danger("it runs as another user")
        yield from _of_files(command)
        if words:
            yield from _of_words(words)
            yield from _of_fetching(before, command.entered, words)
        if depth < _DEPTH_MAX:
            for inner in _texts_inside(words, command.words):
                yield from _dangers(inner, False, depth + 1)
        before = words


def _unwrapped(words: list[str]) -> tuple[list[str], bool]:
    """The command behind its wrappers, and whether it is run as somebody else."""
    rest = list(words)
    other_user = False
    while rest:
        head = basename(rest[0])
        if _ASSIGNMENT.match(rest[0]):
            rest.pop(0)
        elif head in _WRAPPERS or head in _OTHER_USER:
            other_user = other_user or head in _OTHER_USER
            rest.pop(0)
            while rest and (rest[0].startswith("-") or _NUMBER_OR_PLACEHOLDER.match(rest[0])):
                option = rest.pop(0)
                if head in _OTHER_USER and option in ("-u", "-g", "-U", "-p") and rest:
                    rest.pop(0)
        else:
            break
    return rest, other_user


def _texts_inside(words: list[str], all_words: list[str]) -> Iterator[str]:
    """Words that are commands themselves."""
    if words and basename(words[0]) in _SHELLS:
        for option, text in itertools.pairwise(words):
            if option.startswith("-") and "c" in option:
                yield text
    elif words and words[0] == "eval":
        yield " ".join(words[1:])
    elif words and " " in words[0]:
        yield words[0]
    for word in all_words:
        for mark in ("$(", "`"):
            if mark in word:
                yield word.partition(mark)[2]


def _of_files(command: Command) -> Iterator[Danger]:
    targets = list(command.written_to)
    if command.words and basename(command.words[0]) in ("tee", "sponge"):
        targets += command.words[1:]
    for target in targets:
        if _DISK.match(target):
            yield Danger("it overwrites a disk", catastrophe=True)
        if _SYSTEM_FILES.match(target):
            yield Danger("it changes the system")
    if any(_KEYS.search(word[:4096]) for word in [*command.words, *targets]):
        yield Danger("it touches keys")


def _of_fetching(before: list[str], entered: str, words: list[str]) -> Iterator[Danger]:
    danger = Danger("it runs what it fetched")
    head = basename(words[0])
    runs = head in _SHELLS or _INTERPRETERS.match(head)
    if runs and entered == "|" and before and basename(before[0]) in _FETCHERS:
        yield danger
    if head in _FETCHERS and entered == "<(" and before and basename(before[0]) in _SHELLS:
        yield danger
    if runs and any(_FETCHED_INSIDE.match(word) for word in words[1:]):
        yield danger


def _of_words(words: list[str]) -> Iterator[Danger]:
    head = basename(words[0])
    look = _BY_PROGRAM.get(head)
    if look is not None:
        yield from look(words[1:])
    elif head.startswith("mkfs"):
        yield Danger("it formats a disk", catastrophe=True)
    if any(_DELETES_ROWS.search(" ".join(word[:4096].split())) for word in words[1:]):
        yield Danger("it deletes data")


Look = Callable[[list[str]], Iterator[Danger]]


def _has_flag(words: list[str], letters: str, *names: str) -> bool:
    for word in words:
        if word in names:
            return True
        if word.startswith("-") and not word.startswith("--") and set(word[1:]) & set(letters):
            return True
    return False


def _is_everything(word: str) -> bool:
    if _HOME.match(word):
        return True
    path = normpath(word.removesuffix("*") or ".")
    return path in ("/", "//") or _SYSTEM_TREES.match(path) is not None


def _tree(why: str, everything: str, letters: str, *names: str) -> Look:
    """A program that is dangerous with a flag, and a catastrophe on the whole system."""

    def look(words: list[str]) -> Iterator[Danger]:
        if _has_flag(words, letters, *names):
            targets = [word for word in words if not word.startswith("-")]
            whole = any(_is_everything(target) for target in targets)
            yield Danger(everything, catastrophe=True) if whole else Danger(why)

    return look


def _always(why: str, *, catastrophe: bool = False, unless: str = "") -> Look:
    def look(words: list[str]) -> Iterator[Danger]:
        if not unless or unless not in words:
            yield Danger(why, catastrophe)

    return look


def _with_any(why: str, *wanted: str) -> Look:
    """Dangerous if one of these stands among its words; `a b` means: in this order, adjacent."""

    def look(words: list[str]) -> Iterator[Danger]:
        plain = [word for word in words if not word.startswith("-")]
        pairs = {f"{one} {two}" for one, two in itertools.pairwise(plain)}
        if pairs.union(words).intersection(wanted):
            yield Danger(why)

    return look


def _disk_dump(words: list[str]) -> Iterator[Danger]:
    for word in words:
        if word.startswith("of=") and _DISK.match(word[3:]):
            yield Danger("it overwrites a disk", catastrophe=True)


def _find(words: list[str]) -> Iterator[Danger]:
    if "-delete" in words or ({"-exec", "-execdir", "-ok"}.intersection(words) and "rm" in words):
        yield Danger("it deletes what it finds")


def _kill(words: list[str]) -> Iterator[Danger]:
    if words and words[-1] == "-1" and len(words) > 1:
        yield Danger("it ends other processes")


def _git(words: list[str]) -> Iterator[Danger]:
    rest = list(words)
    while rest and rest[0].startswith("-"):
        takes_value = rest.pop(0) in ("-C", "-c", "--git-dir", "--work-tree")
        del rest[: 1 if takes_value else 0]
    action, given = (rest[0], rest[1:]) if rest else ("", [])
    forced = any(word.startswith(("--force", "+")) for word in given)
    dangerous = {
        "push": forced or _has_flag(given, "fd", "--mirror", "--delete", "--prune"),
        "reset": "--hard" in given,
        "clean": _has_flag(given, "f", "--force"),
        "branch": _has_flag(given, "D"),
        "checkout": "." in given,
        "restore": "." in given,
        "stash": bool({"drop", "clear"}.intersection(given)),
        "filter-branch": True,
        "filter-repo": True,
    }
    if dangerous.get(action, False):
        yield Danger("it throws away or rewrites work in git")


_publishes = _with_any("it publishes", "publish", "push", "upload", "release create")
_services = _with_any("it stops services", "stop", "disable", "mask", "kill", "unload")
_permissions = _tree(
    "it changes permissions of a tree", "it changes permissions of the whole system", "R",
    "--recursive",
)  # fmt: skip

_BY_PROGRAM: dict[str, Look] = {
    "rm": _tree(
        "it deletes directories", "it deletes the whole system or home", "rR", "--recursive"
    ),
    **dict.fromkeys(("chmod", "chown", "chgrp"), _permissions),
    **dict.fromkeys(
        ("wipefs", "blkdiscard"), _always("it formats a disk", catastrophe=True)
    ),
    "dd": _disk_dump,
    "find": _find,
    "kill": _kill,
    "git": _git,
    **dict.fromkeys(("pkill", "killall", "killall5"), _always("it ends other processes")),
    **dict.fromkeys(
        ("shutdown", "reboot", "halt", "poweroff", "telinit"), _always("it stops the machine")
    ),
    **dict.fromkeys(("systemctl", "launchctl", "service"), _services),
    **dict.fromkeys(
        ("npm", "pnpm", "yarn", "cargo", "poetry", "uv", "hatch", "flit", "twine", "gem", "gh"),
        _publishes,
    ),
    **dict.fromkeys(
        ("mount", "umount", "fdisk", "parted", "iptables", "nft", "visudo", "useradd", "userdel",
         "usermod", "passwd", "shred"),
        _always("it changes the system"),
    ),
    "sysctl": _with_any("it changes the system", "-w"),
    "crontab": _always("it changes what runs by itself", unless="-l"),
    **dict.fromkeys(
        ("docker", "podman"),
        _with_any("it deletes or publishes images or data", "push", "system prune", "volume prune",
                  "volume rm", "image prune", "container prune"),
    ),
    "kubectl": _with_any("it changes a cluster", "delete", "drain"),
    "terraform": _with_any("it changes infrastructure", "destroy", "apply"),
    "redis-cli": _with_any("it deletes data", "flushall", "FLUSHALL", "flushdb", "FLUSHDB"),
}  # fmt: skip
