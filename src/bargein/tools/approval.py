"""Which calls run as they are, which need a yes from the user, and which never run. Pure.

A `Policy` is a list of rules in order; the first that fits decides. A rule fits by the tool's name
(with `*`), and if it has a pattern, by what is found in the call's text: the one parameter that it
names, or else every text in the arguments.

This is a seat belt, not a sandbox: a command that wants to hide what it does can. It catches what
models do by mistake, and gives the user a say.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Any

import msgspec

from bargein.contracts.tool import Approval, Question, QuestionKind
from bargein.tools.dangers import look_at
from bargein.tools.output import shortened

TEXT_CHARS_MAX = 20_000
"""A longer text is not searched for the patterns of rules: a pattern may take time that grows much
faster than the text. A rule that would have asked or denied then asks."""

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
    def verdict(self) -> "Verdict":
        return Verdict(self.decision, self.why)

    def fits(self, tool: str, arguments: Mapping[str, Any]) -> bool:
        if not fnmatchcase(tool, self.tool):
            return False
        if not self.pattern:
            return True
        pattern = re.compile(self.pattern)
        given = arguments.get(self.parameter) if self.parameter else arguments
        return any(pattern.search(text) for text in _texts(given))


class Verdict(msgspec.Struct, frozen=True):
    decision: Decision
    why: str = ""


class Policy(msgspec.Struct, frozen=True):
    """Rules in order; then, for tools that run commands, what `dangers` sees in them; then the
    default. `Policy()` allows everything."""

    rules: tuple[Rule, ...] = ()
    command_tools: tuple[str, ...] = ()
    code_tools: tuple[str, ...] = ()
    default: Decision = Decision.ALLOW

    def decide(self, tool: str, arguments: Mapping[str, Any]) -> Verdict:
        unread = any(len(text) > TEXT_CHARS_MAX for text in _texts(arguments))
        strict = False
        for rule in self.rules:
            if rule.pattern and unread:
                about_it = fnmatchcase(tool, rule.tool)
                strict = strict or (about_it and rule.decision is not Decision.ALLOW)
            elif rule.fits(tool, arguments):
                return Verdict(Decision.ASK, _TOO_LONG) if strict else rule.verdict
        danger = self._danger(tool, arguments)
        if danger is not None:
            return danger
        return Verdict(Decision.ASK, _TOO_LONG) if strict else Verdict(self.default)

    def _danger(self, tool: str, arguments: Mapping[str, Any]) -> Verdict | None:
        if tool not in self.command_tools and tool not in self.code_tools:
            return None
        found = [look_at(text, as_code=tool in self.code_tools) for text in _texts(arguments)]
        worst = max(filter(None, found), key=lambda danger: danger.catastrophe, default=None)
        if worst is None:
            return None
        return Verdict(Decision.DENY if worst.catastrophe else Decision.ASK, worst.why)

    def before(self, rules: Iterable[Rule]) -> "Policy":
        """A policy that looks at `rules` first."""
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


def question(title: str, why: str, detail: str) -> Question:
    reason = f" ({why})" if why else ""
    return Question(
        f"Allow this call{reason}? {title}",
        kind=QuestionKind.APPROVAL,
        choices=(Approval.ALLOW.value, Approval.DENY.value),
        detail=shortened(detail, 4_000),
    )


DEFAULT_POLICY = Policy(command_tools=("terminal",), code_tools=("python",))
"""Reading and writing inside the workspace is allowed; commands that destroy, publish, take over
the system or run what they fetched are asked about; plain catastrophes are refused."""
