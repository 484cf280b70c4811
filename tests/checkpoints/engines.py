"""A real engine in a workspace, whose scripted model runs shell commands."""

from __future__ import annotations

from pathlib import Path

from bargein import Agent, Engine
from bargein.models.script import Call
from bargein.models.scripted import ScriptedModel


def engine_of(workspace: Path, script: object) -> Engine[str]:
    model = ScriptedModel(script)  # type: ignore[arg-type]
    agent = Agent(model, workspace=workspace, mode="full")
    return Engine(agent, home=workspace.parent / "home")


def shell(command: str) -> Call:
    return Call("terminal", {"command": command})
