"""Where each system runs: a virtual environment of its own, made on demand from pinned versions.

`systems.toml` names the systems; `pins/NAME.txt` pins every package of one, so that nothing is
resolved when it is installed. Environments are kept under the user's cache directory, named after
their pins: a changed pin makes a new one. One that was only half made has no stamp and is made
anew.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).parent
SYSTEMS = HERE / "systems.toml"
PINS = HERE / "pins"


class CannotInstall(Exception):
    """The system cannot be installed on this machine; the message says why."""


@dataclass(frozen=True, slots=True)
class SystemSpec:
    """`python` is the version it needs, or "project" for the interpreter of this project.
    `driver` is a module of `drivers`, or of elsewhere by its whole name."""

    name: str
    title: str
    driver: str
    python: str
    imports: str
    environment: dict[str, str] = field(default_factory=dict)


def load_systems() -> dict[str, SystemSpec]:
    table = tomllib.loads(SYSTEMS.read_text())
    return {name: SystemSpec(name=name, **values) for name, values in table.items()}


def cache_directory() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "bargein" / "interruptbench"


def interpreter(spec: SystemSpec) -> Path:
    """Returns the Python that runs this system's driver; installs it first if necessary."""
    if spec.python == "project":
        return Path(sys.executable)
    pins = PINS / f"{spec.name}.txt"
    digest = hashlib.sha256(pins.read_bytes() + spec.python.encode()).hexdigest()[:12]
    folder = cache_directory() / f"{spec.name}-{digest}"
    if not (folder / "stamp").exists():
        _make(spec, pins, folder)
    return folder / "bin" / "python"


def _make(spec: SystemSpec, pins: Path, folder: Path) -> None:
    base = find_python(spec.python)
    if base is None:
        raise CannotInstall(f"needs Python {spec.python}, and there is none here")
    print(f"Installing {spec.title} for Python {spec.python}.", file=sys.stderr, flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    python = str(folder / "bin" / "python")
    for command in (
        [base, "-I", "-m", "venv", str(folder)],
        [python, "-I", "-m", "pip", "install", "-q", "--no-deps", "-r", str(pins)],
    ):
        done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
        if done.returncode != 0:
            lines = [line for line in done.stderr.splitlines() if "ERROR" in line]
            raise CannotInstall((lines or done.stderr.splitlines() or ["pip failed"])[-1][:200])
    (folder / "stamp").write_text("made\n")


def find_python(version: str) -> str | None:
    """An interpreter of this version: our own, one on the path, or one of pyenv's."""
    if sys.version_info[:2] == tuple(map(int, version.split("."))):
        return sys.executable
    root = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    kept = sorted((root / "versions").glob(f"{version}.*/bin/python"))
    for candidate in [shutil.which(f"python{version}"), *map(str, kept)]:
        if candidate is not None and _runs(candidate, version):
            return candidate
    return None


def _runs(candidate: str, version: str) -> bool:
    code = "import sys, venv, ensurepip; print('%d.%d' % sys.version_info[:2])"
    done = subprocess.run(
        [candidate, "-I", "-c", code], capture_output=True, text=True, check=False
    )
    return done.stdout.strip() == version
