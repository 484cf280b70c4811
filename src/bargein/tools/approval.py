"""Decides which calls run, which need the user's approval and which never run. Pure.

A `Policy` is an ordered list of rules; the first rule that matches decides. A rule matches by the
tool's name (with `*`). If the rule has a pattern, it must also match the call's text: the parameter
that the rule names, or else every text in the arguments.

This is a seat belt, not a sandbox. It catches the mistakes that models make and gives the user a
say. A command that wants to hide what it does can still hide it.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Any

import msgspec

from bargein.contracts.permission import Grant
from bargein.contracts.tool import Approval, Question, QuestionKind
from bargein.contracts.visible import visible
from bargein.errors import ModelMisbehaved
from bargein.tools.dangers import look_at

TEXT_CHARS_MAX = 20_000
"""Patterns are not applied to longer texts, because matching may take far longer than linear time.
A rule that would have asked or denied then asks."""

DETAIL_CHARS_MAX = 30_000
"""The longest detail an approval shows. A call that needs more is refused, never cut."""

ONCE = (Approval.ALLOW, Approval.DENY)

_TOO_LONG = "it is too long to be checked"


class Decision(StrEnum):
    ALLOW = "allow"
    ASK = "ask"
    DENY = "deny"


class Rule(msgspec.Struct, frozen=True):
    """`Rule(Decision.ASK, "terminal", r"\\bgit push\\b", why="it publishes")`."""

    decision: Decision
    tool: str = "*"
    pattern: str = ""
    parameter: str = ""
    why: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.decision, Decision):
            raise ValueError(f"a rule's decision must be allow, ask or deny, not {self.decision!r}")
        try:
            re.compile(self.pattern)
        except re.error as error:
            raise ValueError(f"the pattern {self.pattern!r} of a rule is wrong: {error}") from error

    @property
    def verdict(self) -> "PolicyVerdict":
        return PolicyVerdict(self.decision, self.why)

    def fits(self, tool: str, arguments: Mapping[str, Any]) -> bool:
        if not fnmatchcase(tool, self.tool):
            return False
        if not self.pattern:
            return True
        pattern = re.compile(self.pattern)
        given = arguments.get(self.parameter) if self.parameter else arguments
        return any(pattern.search(text) for text in _texts(given))


class PolicyVerdict(msgspec.Struct, frozen=True):
    """`danger` is true if the contents of a command or of code led to this decision."""

    decision: Decision
    why: str = ""
    danger: bool = False


class Policy(msgspec.Struct, frozen=True):
    """Applies the rules in order, then (for tools that run commands) `dangers`, then the default.
    A rule that asks does not weaken the check for dangers: what is refused stays refused, and a
    danger that is asked about is named. `Policy()` allows everything."""

    rules: tuple[Rule, ...] = ()
    command_tools: tuple[str, ...] = ()
    code_tools: tuple[str, ...] = ()
    default: Decision = Decision.ALLOW

    def decide(self, tool: str, arguments: Mapping[str, Any]) -> PolicyVerdict:
        unread = any(len(text) > TEXT_CHARS_MAX for text in _texts(arguments))
        strict = False
        for rule in self.rules:
            if rule.pattern and unread:
                about_it = fnmatchcase(tool, rule.tool)
                strict = strict or (about_it and rule.decision is not Decision.ALLOW)
            elif rule.fits(tool, arguments):
                if strict:
                    return PolicyVerdict(Decision.ASK, _TOO_LONG)
                danger = self._danger(tool, arguments) if rule.decision is Decision.ASK else None
                return danger or rule.verdict
        danger = self._danger(tool, arguments)
        if danger is not None:
            return danger
        return PolicyVerdict(Decision.ASK, _TOO_LONG) if strict else PolicyVerdict(self.default)

    def _danger(self, tool: str, arguments: Mapping[str, Any]) -> PolicyVerdict | None:
        if tool not in self.command_tools and tool not in self.code_tools:
            return None
        found = [
            look_at(text, as_code=as_code)
            for as_code, tools in ((False, self.command_tools), (True, self.code_tools))
            if tool in tools
            for text in _texts(arguments)
        ]
        worst = max(filter(None, found), key=lambda danger: danger.catastrophe, default=None)
        if worst is None:
            return None
        decision = Decision.DENY if worst.catastrophe else Decision.ASK
        return PolicyVerdict(decision, worst.why.value, danger=True)

    def before(self, rules: Iterable[Rule]) -> "Policy":
        """Returns a policy that applies `rules` before its own."""
        return msgspec.structs.replace(self, rules=(*rules, *self.rules))


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _texts(each)
    elif isinstance(value, list | tuple | set | frozenset):
        for each in value:
            yield from _texts(each)


class TooLongToShow(ModelMisbehaved):
    """The arguments are too long for an approval, which must show all of them. The message is for
    the model."""


def grant_of(
    tool: str, verdict: PolicyVerdict, arguments: Mapping[str, object], fixed: Iterable[str] | None
) -> Grant:
    """Returns the rule that "allow for longer" creates: this tool with these arguments, or with the
    `fixed` ones among them. If the call is dangerous, the grant fixes every text argument, so it
    never covers a different command."""
    names = set(arguments if fixed is None else fixed)
    if verdict.danger:
        names |= {name for name, value in arguments.items() if any(_texts(value))}
    kept = {name: value for name, value in arguments.items() if name in names}
    return Grant(tool, tuple((name, _plain(value)) for name, value in kept.items()), verdict.why)


def question(
    title: str, why: str, arguments: Mapping[str, object], grant: Grant | None = None
) -> Question:
    """Builds the question whether a call with these arguments may run. `grant` is the rule that
    "allow for longer" would create.

    Every surface shows `text` and `detail` unchanged. Together they contain all arguments, with
    characters that hide or move text made visible. `detail` is empty if the title already shows
    everything. Raises `TooLongToShow` if nobody could be expected to read it.
    """
    reason = f" ({why})" if why else ""
    shown = {name: _shown(value) for name, value in arguments.items()}
    # Later lines of a text are indented, so that they cannot pass for another argument.
    lines = [f"{name}: {text}".replace("\n", "\n  ") for name, text in shown.items()]
    detail = "" if list(shown.values()) == [title] else "\n".join(lines)
    if len(detail) > DETAIL_CHARS_MAX:
        raise TooLongToShow(
            f"this call needs the user's approval, and its arguments have {len(detail)} "
            f"characters, more than can be shown to them ({DETAIL_CHARS_MAX}). Do it in smaller "
            "steps, or write a file in pieces and run that."
        )
    return Question(
        visible(f"Allow this call{reason}? {title}"),
        kind=QuestionKind.APPROVAL,
        choices=tuple(each.value for each in (ONCE if grant is None else Approval)),
        detail=detail,
        grant=grant,
    )


def _shown(value: object) -> str:
    return visible(_plain(value))


def _plain(value: object) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value, enc_hook=repr).decode()


# A shell or an interpreter may read what is written to a background process.
DEFAULT_POLICY = Policy(
    rules=(Rule(Decision.ASK, "mcp__*", why="an MCP server does it"),),
    command_tools=("terminal", "process"),
    code_tools=("python", "process"),
)
"""Allows reading and writing inside the workspace. Asks about commands that destroy, publish, take
over the system or run what they fetched, and about every call of an MCP server. Refuses plain
catastrophes."""
