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

from bargein.contracts.permission import Grant
from bargein.contracts.tool import Approval, Question, QuestionKind
from bargein.contracts.visible import visible
from bargein.errors import ModelMisbehaved
from bargein.tools.dangers import look_at

TEXT_CHARS_MAX = 20_000
"""A longer text is not searched for the patterns of rules: a pattern may take time that grows much
faster than the text. A rule that would have asked or denied then asks."""

DETAIL_CHARS_MAX = 30_000
"""What an approval shows at most. A call that would take more is refused, and not cut."""

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
    """`danger`: what the call's texts would do is why."""

    decision: Decision
    why: str = ""
    danger: bool = False


class Policy(msgspec.Struct, frozen=True):
    """Rules in order; then, for tools that run commands, what `dangers` sees in them; then the
    default. A rule that asks does not make less of a danger: what is refused stays refused, and a
    danger that is asked about is named. `Policy()` allows everything."""

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
                if strict:
                    return Verdict(Decision.ASK, _TOO_LONG)
                danger = self._danger(tool, arguments) if rule.decision is Decision.ASK else None
                return danger or rule.verdict
        danger = self._danger(tool, arguments)
        if danger is not None:
            return danger
        return Verdict(Decision.ASK, _TOO_LONG) if strict else Verdict(self.default)

    def _danger(self, tool: str, arguments: Mapping[str, Any]) -> Verdict | None:
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
        return Verdict(decision, worst.why.value, danger=True)

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


class TooLongToShow(ModelMisbehaved):
    """An approval must show all of what is approved. The message is written for the model."""


def grant_of(
    tool: str, verdict: Verdict, arguments: Mapping[str, object], fixed: Iterable[str] | None
) -> Grant:
    """The rule that a yes for longer makes: the tool with these arguments, or with the `fixed` ones
    of them. A danger is granted with every text of the call: never for another one."""
    names = set(arguments if fixed is None else fixed)
    if verdict.danger:
        names |= {name for name, value in arguments.items() if any(_texts(value))}
    kept = {name: value for name, value in arguments.items() if name in names}
    return Grant(tool, tuple((name, _plain(value)) for name, value in kept.items()), verdict.why)


def question(
    title: str, why: str, arguments: Mapping[str, object], grant: Grant | None = None
) -> Question:
    """The question whether a call with these arguments may run. `grant` is the rule that a yes for
    longer would make.

    `text` and `detail` are what every surface shows, as they are: all of the arguments, with
    nothing in them that hides or moves text. `detail` is empty where the title says it all. Raises
    `TooLongToShow` for what nobody would read.
    """
    reason = f" ({why})" if why else ""
    told = {name: _told(value) for name, value in arguments.items()}
    # What follows in a text of several lines is moved in: it cannot pass for another argument.
    lines = [f"{name}: {text}".replace("\n", "\n  ") for name, text in told.items()]
    detail = "" if list(told.values()) == [title] else "\n".join(lines)
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


def _told(value: object) -> str:
    return visible(_plain(value))


def _plain(value: object) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value, enc_hook=repr).decode()


# What is written to a process in the background may be read by a shell or by an interpreter.
DEFAULT_POLICY = Policy(command_tools=("terminal", "process"), code_tools=("python", "process"))
"""Reading and writing inside the workspace is allowed; commands that destroy, publish, take over
the system or run what they fetched are asked about; plain catastrophes are refused."""
