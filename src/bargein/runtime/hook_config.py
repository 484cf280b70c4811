"""The hooks of the user and of the project: commands and webhooks that learn what sessions do.

    [[hooks]]                                   # in the user's config.toml, or a project's
    on = ["stopped", "question"]                # bargein.toml
    command = "notify-send Bargein $BARGEIN_HOOK"

    [[hooks]]
    on = ["settled"]
    url = "https://example.com/hook"
    headers = { Authorization = "Bearer ${HOOK_TOKEN}" }
    timeout_s = 5

The hooks of a project are used only if the user approved them (`runtime.project_trust`). The
approval is checked again at each use, because the agent can write to the scripts that they run.
"""

import json
import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from bargein.errors import UserError
from bargein.runtime.project_trust import Trust, TrustRequest, scripts_named

TABLE: Final = "hooks"
KIND: Final = "hooks"
HOOKS_MAX: Final = 50
TIMEOUT_S: Final = 10.0
TIMEOUT_S_MAX: Final = 60.0
_KNOWN: Final = ("on", "command", "url", "headers", "timeout_s")
_VARIABLE: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


class HookEvent(StrEnum):
    """What a hook can be for."""

    SETTLED = "settled"
    """A turn has ended, however it did."""
    STOPPED = "stopped"
    """A turn was stopped; the receipt says what became of it."""
    QUESTION = "question"
    """A question waits for the user."""
    BUDGET = "budget"
    """A budget is nearly used up."""
    RECOVERED = "recovered"
    """A turn that a crash had cut off was settled at a start."""


@dataclass(frozen=True, slots=True)
class OutsideHook:
    """A command or a webhook. `source` is the file that names it; `table` is set if that is a
    project's."""

    on: frozenset[HookEvent]
    source: str
    command: str = ""
    url: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float = TIMEOUT_S
    table: "HookTable | None" = None

    def __str__(self) -> str:
        """For logs: without the path of an address, which often is a secret."""
        return f"{self.command or self.place} ({self.source})"

    @property
    def place(self) -> str:
        """The scheme and host of the address."""
        address = urlsplit(self.url)
        return f"{address.scheme}://{address.hostname}"

    def why_not(self) -> str:
        """Says why it must not run now; empty if it may."""
        table = self.table
        if table is None:
            return ""
        try:
            if table.trust.is_approved(table.request()):
                return ""
        except UserError as error:
            return str(error)
        return "the file or a script that it names has changed since you approved it"


@dataclass(frozen=True, slots=True)
class HookTable:
    """The hooks that one file of a project names, as they are written."""

    path: Path
    specs: tuple[Mapping[str, Any], ...]
    project: str
    trust: Trust

    def request(self) -> TrustRequest:
        """What the file asks for, with the scripts as they are now."""
        effects = tuple(_effect(spec) for spec in self.specs)
        named = sorted({found[1] for each in effects for found in _VARIABLE.finditer(each)})
        words = [each for spec in self.specs if isinstance(each := spec.get("command"), str)]
        scripts = scripts_named(Path(self.project), words)
        return TrustRequest(KIND, self.project, str(self.path), effects, tuple(named), scripts)


def read_hooks(
    paths: Iterable[tuple[Path, bool]], environment: Mapping[str, str], trust: Trust
) -> tuple[tuple[OutsideHook, ...], tuple[TrustRequest, ...]]:
    """Returns the hooks that count, and what waits for the user's approval. Each path comes with
    whether it is the user's own. Raises `UserError` for a mistake in what counts."""
    hooks: list[OutsideHook] = []
    left_out: list[TrustRequest] = []
    for path, own in paths:
        specs = _specs(path)
        if not specs:
            continue
        table = None
        if not own:
            table = HookTable(path, specs, os.path.realpath(path.parent), trust)
            request = table.request()
            if not trust.is_approved(request):
                left_out.append(request)
                continue
        hooks += [_hook(path, spec, environment, table) for spec in specs]
    return tuple(hooks), tuple(left_out)


def _specs(path: Path) -> tuple[Mapping[str, Any], ...]:
    # The file itself was checked when the settings were read.
    found = tomllib.loads(path.read_text(encoding="utf-8")).get(TABLE, [])
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise UserError(f"{path}: write each hook as a table of its own: [[{TABLE}]]")
    if len(found) > HOOKS_MAX:
        raise UserError(f"{path} has {len(found)} hooks; {HOOKS_MAX} at most")
    return tuple(found)


def _hook(
    path: Path, spec: Mapping[str, Any], environment: Mapping[str, str], table: HookTable | None
) -> OutsideHook:
    where = f"{path}: {TABLE}"
    for key in spec:
        if key not in _KNOWN:
            raise UserError(f"{where}: there is no {key!r}; a hook has {', '.join(_KNOWN)}")
    command, url = spec.get("command", ""), spec.get("url", "")
    if not isinstance(command, str) or not isinstance(url, str) or bool(command) == bool(url):
        raise UserError(f"{where}: give a hook either a command or a url, as text")
    if url and (urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname):
        raise UserError(f"{where}: url = {url!r} is no address; write https://HOST/PATH")
    timeout_s = spec.get("timeout_s", TIMEOUT_S)
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, int | float):
        timeout_s = -1.0
    if not 0 < timeout_s <= TIMEOUT_S_MAX:
        raise UserError(f"{where}: timeout_s is above 0 and at most {TIMEOUT_S_MAX:g} seconds")
    headers = spec.get("headers", {})
    if not isinstance(headers, dict) or not all(isinstance(each, str) for each in headers.values()):
        raise UserError(f"{where}: headers are texts by their names")
    return OutsideHook(
        _events(where, spec.get("on")),
        str(path),
        command,
        _filled(where, url, environment),
        {name: _filled(where, value, environment) for name, value in headers.items()},
        float(timeout_s),
        table,
    )


def _events(where: str, given: object) -> frozenset[HookEvent]:
    named = [given] if isinstance(given, str) else given
    choices = ", ".join(HookEvent)
    if not isinstance(named, list) or not named:
        raise UserError(f"{where}: say what a hook is for: on = [...], of {choices}")
    try:
        return frozenset(HookEvent(each) for each in named)
    except ValueError:
        raise UserError(f"{where}: on = {named!r} is not valid; give some of {choices}") from None


def _filled(where: str, value: str, environment: Mapping[str, str]) -> str:
    def replaced(found: re.Match[str]) -> str:
        given = environment.get(found[1])
        if given is None:
            raise UserError(f"{where}: the variable {found[1]} is not set; set it")
        return given

    return _VARIABLE.sub(replaced, value)


def _effect(spec: Mapping[str, Any]) -> str:
    """Describe a hook for the user's approval: first what it does, then every key as written."""
    command = spec.get("command")
    does = f"runs {command}" if command else f"sends what happens to {spec.get('url')}"
    return "\n".join(
        [does, *(f"{key} = {json.dumps(spec[key], ensure_ascii=False)}" for key in sorted(spec))]
    )
