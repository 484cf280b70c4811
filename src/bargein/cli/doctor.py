"""`bargein doctor`: what this machine can promise, and what to do about what it cannot."""

import argparse
import sys
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import anyio

from bargein.cancel import CancelSource
from bargein.cli.config import Config
from bargein.cli.wiring import DATABASE
from bargein.errors import BargeinError


class Finding(NamedTuple):
    good: bool
    what: str
    detail: str
    todo: str = ""


def main(given: argparse.Namespace, config: Config) -> int:
    findings = anyio.run(_look, config)
    for finding in findings:
        print(f"{'ok ' if finding.good else '!! '} {finding.what}: {finding.detail}")
        if finding.todo:
            print(f"    -> {finding.todo}")
    return 0 if all(finding.good for finding in findings) else 1


async def _look(config: Config) -> list[Finding]:
    checks: list[tuple[str, Callable[[Config], Awaitable[Finding]]]] = [
        ("containment", _containment),
        ("model", _model),
        ("store", _store),
    ]
    findings = [Finding(True, "python", sys.version.split()[0])]
    for name, check in checks:
        try:
            findings.append(await check(config))
        except (BargeinError, OSError) as error:
            findings.append(Finding(False, name, str(error)))
    return findings


async def _containment(config: Config) -> Finding:
    from bargein.process import Means, open_containment

    async with await open_containment(means="auto", home=None) as containment:
        report = containment.report
    tried = "; ".join(f"{attempt}" for attempt in report.attempts)
    if report.means is Means.GROUP:
        todo = "on Linux, run inside a delegated cgroup or allow unprivileged subreapers"
        return Finding(False, "containment", f"{report.promise} (tried: {tried})", todo)
    return Finding(True, "containment", f"{report.means}: {report.promise}")


async def _model(config: Config) -> Finding:
    from bargein.models.choice import choose_name

    with CancelSource("doctor") as source:
        choice = await choose_name(config.models, source.token)
    todo = "set OPENAI_API_KEY or ANTHROPIC_API_KEY, or start Ollama, for a capable one"
    found = f"{choice.name} ({choice.why})"
    return Finding(True, "model", found, todo if choice.name == "local" else "")


async def _store(config: Config) -> Finding:
    from bargein.stores.sqlite import SqliteStore

    store = await SqliteStore.open(config.home / DATABASE)
    try:
        count = len(await store.sessions(limit=1000))
    finally:
        await store.aclose()
    return Finding(True, "store", f"{config.home / DATABASE}, {count} sessions")
