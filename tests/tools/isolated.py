"""Functions that run in their own process. In a separate module, because the child imports it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time

import msgspec

from bargein.cancel import Token, is_interrupted
from bargein.contracts.tool import Effect
from bargein.tools import tool


class Point(msgspec.Struct):
    x: int
    y: int = 0


@tool(isolation="process", effect=Effect.NONE)
def add(points: list[Point], scale: float = 1.0) -> dict[str, float]:
    """Add points up."""
    print("adding", len(points))  # noqa: T201 - shown live
    return {"x": scale * sum(point.x for point in points), "pid": os.getpid()}


@tool(isolation="process")
def divide(number: int) -> float:
    return 1 / number


@tool(isolation="process")
def die() -> None:
    print("dying", flush=True)  # noqa: T201 - shown live
    os.kill(os.getpid(), signal.SIGKILL)


@tool(isolation="process")
def catastrophic_pattern(folder: str) -> bool:
    """One call of the regular expression engine that lasts for ages and lets nobody in."""
    announce(folder)
    return re.match(r"(a+)+$", "a" * 64 + "b") is not None


@tool(isolation="process")
def start_others(folder: str) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    command = f"trap '' INT; echo $$ > {folder}/pid; sleep 1000"
    subprocess.Popen(["setsid", "sh", "-c", command])
    while True:
        time.sleep(0.01)


@tool(isolation="process", resources=lambda arguments: ["the printer"])
def stop_politely(folder: str, token: Token) -> None:
    announce(folder)
    token.wait(60)
    assert is_interrupted()
    with open(f"{folder}/cleaned", "w") as file:
        file.write("yes\n")
    token.check()


@tool(isolation="process")
def read_input() -> str:
    return repr(sys.stdin.read())


def announce(folder: str) -> None:
    with open(f"{folder}/pid", "w") as file:
        file.write(f"{os.getpid()}\n")
