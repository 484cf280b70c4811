"""The examples of docs/tools.md work as they stand."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bargein.tools import DEFAULT_POLICY, Decision, Policy, Tool, ToolRegistry
from tests.tools.bench_of_tools import open_shop
from tests.tools.desk import Desk, text_of

PAGE = (Path(__file__).parents[2] / "docs/tools.md").read_text()
POLICY, TOOLS, DEPS, COMMANDS, ALONE = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)


def test_the_policy_decides_as_it_reads() -> None:
    names: dict[str, object] = {}
    exec(POLICY, names)
    policy = names["policy"]
    assert isinstance(policy, Policy)
    removes = {"command": "rm -r build"}
    assert DEFAULT_POLICY.decide("terminal", removes).decision is Decision.ASK
    assert policy.decide("terminal", removes).decision is Decision.ALLOW
    assert policy.decide("terminal", {"command": "terraform plan"}).decision is Decision.ASK
    assert policy.decide("web_fetch", {"url": "x"}).decision is Decision.DENY
    assert policy.decide("terminal", {"command": "rm -rf /"}).decision is Decision.DENY


def test_the_tools_are_tools() -> None:
    names: dict[str, object] = {}
    exec(TOOLS, names)
    made = {name: each for name, each in names.items() if isinstance(each, Tool)}
    assert made.keys() == {"count_words", "deploy"}
    schema = made["count_words"].signature.schema
    assert schema["properties"]["minimum"]["description"] == "Leave out what is there less often."
    assert schema["required"] == ["path"]


def test_a_tool_reads_its_deps() -> None:
    names: dict[str, Any] = {}
    exec(DEPS, names)
    agent = names["agent"]
    assert names["price"].signature.deps is names["Shop"]
    assert isinstance(agent.deps, names["Shop"])
    ToolRegistry(agent.tools, deps=agent.deps)


@pytest.mark.needs("make")
def test_a_tool_that_runs_commands(tmp_path: Path) -> None:
    folder = tmp_path / "src"
    folder.mkdir()
    (folder / "Makefile").write_text("all:\n\t@mkdir ../build && echo x > ../build/made\n")
    names: dict[str, Any] = {}
    exec(COMMANDS, names)

    async def main() -> str:
        async with open_shop(tmp_path, more=(names["build"],)) as shop:
            return text_of(await shop.use(Desk(), "build", target="all"))

    assert "build/made" in asyncio.run(main())


def test_tools_run_without_a_session(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", ALONE],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert done.stdout.startswith("hello\n[exit code 0")
    assert done.stderr == ""
