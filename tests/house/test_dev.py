"""`./dev` sets a tree up from nothing, once, and never leaves one that only looks complete.

Each test is about a miniature project in a directory of its own: the real script, a lock with one
tiny package, and a build backend that can be held at a gate, so that a set-up can be stopped in its
middle. Everything is installed by the real pip, from files, without a network.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pip
import pytest

ROOT = Path(__file__).parents[2]
TOOLS = ["awk", "cat", "cksum", "cmp", "dirname", "grep", "ln", "mv", "rm", "sh", "tail"]
BASE_PYTHON = Path(sys.base_prefix) / f"bin/python3.{sys.version_info[1]}"
VENV = f".venv-3.{sys.version_info[1]}"

# A Python that links pip into a new environment. To install it there, as Python itself does, takes
# seconds; one test waits for that.
QUICK_PYTHON = f"""\
case "$*" in
*"-m venv"*)
    for venv; do :; done
    "{BASE_PYTHON}" -I -m venv --without-pip "$venv" &&
        ln -s "{Path(pip.__file__).parent}" "$venv"/lib/python3.*/site-packages/
    ;;
*) exec "{BASE_PYTHON}" "$@" ;;
esac
"""

pytestmark = pytest.mark.timeout(180)

PYPROJECT = """\
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
[project]
name = "host"
version = "1.0"
"""

BACKEND = """\
import pathlib, shutil
def build_editable(directory, settings=None, metadata=None):
    gate = pathlib.Path("gate")
    if gate.exists():
        gate.read_text()
    return shutil.copy("host-1.0-py3-none-any.whl", directory).rpartition("/")[2]
"""


class Tree:
    """A miniature project and a machine to run its ./dev on."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.started: list[subprocess.Popen[str]] = []
        self.bin = root.parent / "bin"
        self.bin.mkdir()
        for tool in TOOLS:
            (self.bin / tool).symlink_to(shutil.which(tool) or tool)
        self.add_program("python3", QUICK_PYTHON)
        root.mkdir()
        shutil.copy(ROOT / "dev", root)
        (root / "pyproject.toml").write_text(PYPROJECT)
        (root / "backend.py").write_text(BACKEND)
        # Beside the project and not in it, because pip splits this setting at spaces.
        self.wheels = root.parent / "wheels"
        self.wheels.mkdir()
        write_wheel(root, "host", "1.0", {})
        self.lock("1.0")

    def add_program(self, name: str, script: str) -> None:
        path = self.bin / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    def lock(self, version: str) -> Path:
        """Pin `guest` to this version, and offer its wheel."""
        code = {"guest.py": f"version = {version!r}\n"}
        wheel = write_wheel(self.wheels, "guest", version, code)
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        pin = f"guest=={version} \\\n    --hash=sha256:{digest}\n"
        (self.root / "requirements.lock").write_text(pin)
        return wheel

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            ["sh", self.root / "dev", *arguments],
            env={
                "PATH": str(self.bin),
                "HOME": str(self.root.parent),
                "PIP_NO_INDEX": "1",
                "PIP_FIND_LINKS": str(self.wheels),
                **environment,
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.started.append(process)
        return process

    def kill(self, process: subprocess.Popen[str]) -> None:
        """All of it at once, as when the power goes."""
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()

    def run(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        process = self.start(*arguments, **environment)
        out, err = process.communicate()
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)

    @contextmanager
    def held_set_up(self) -> Iterator[subprocess.Popen[str]]:
        """A set-up that stands in its middle: all is installed but the project itself."""
        gate = self.root / "gate"
        os.mkfifo(gate)
        process = self.start("python", "-c", "print('first')")
        with gate.open("w"):  # opens when the backend has come there; closing lets it go on
            yield process

    def first_line(self) -> str:
        """What a set-up says first; then it is killed, because to finish it takes seconds."""
        process = self.start("python")
        assert process.stderr is not None
        line = process.stderr.readline()
        self.kill(process)
        return line

    def guest(self) -> tuple[str, str]:
        """Which version of the package a command sees, and what the set-up said."""
        done = self.run("python", "-c", "import guest; print(guest.version)")
        assert done.returncode == 0, done.stderr
        return done.stdout.strip(), done.stderr


def write_wheel(directory: Path, name: str, version: str, files: dict[str, str]) -> Path:
    info = f"{name}-{version}.dist-info"
    files = files | {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},,\n" for path in [*files, f"{info}/RECORD"])
    wheel = directory / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, text in {**files, f"{info}/RECORD": record}.items():
            archive.writestr(path, text)
    return wheel


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Tree]:
    tree = Tree(tmp_path / "a project")
    yield tree
    for process in tree.started:
        tree.kill(process)


def test_sets_up_once_then_only_runs_then_updates(tree: Tree) -> None:
    """One test for what would be three, because this one makes its environment the long way."""
    tree.add_program("python3", "echo 3.9")
    tree.add_program("python3.11", f'exec "{BASE_PYTHON}" "$@"')
    version, said = tree.guest()
    assert version == "1.0"
    assert said.startswith("Making .venv with Python 3.")

    done = tree.run("python", "-c", "import sys; print(sys.argv[1:]); sys.exit(7)", "a b", "")
    assert (done.returncode, done.stdout, done.stderr) == (7, "['a b', '']\n", "")

    tree.lock("2.0")
    version, said = tree.guest()
    assert (version, said.split(":")[0]) == ("2.0", "Updating .venv")
    assert tree.guest() == ("2.0", "")


def test_an_update_that_was_killed_is_made_anew(tree: Tree) -> None:
    tree.guest()
    tree.lock("2.0")
    with tree.held_set_up() as process:
        tree.kill(process)
    assert tree.first_line().startswith("Making .venv")


def test_two_at_once_set_up_once(tree: Tree) -> None:
    with tree.held_set_up() as first:
        second = tree.start("python", "-c", "print('second')")
        assert second.stderr is not None
        assert "Waiting for another ./dev" in second.stderr.readline()
    assert first.communicate()[0] == "first\n"
    assert second.communicate() == ("second\n", "")


def test_one_that_waits_takes_over_when_the_first_is_killed(tree: Tree) -> None:
    with tree.held_set_up() as first:
        second = tree.start("python")
        assert second.stderr is not None
        assert "Waiting for another ./dev" in second.stderr.readline()
        tree.kill(first)
        assert second.stderr.readline().startswith("Making .venv")


def test_an_environment_of_another_place_is_not_taken_for_ours(tree: Tree) -> None:
    tree.guest()
    tree.root = tree.root.rename(tree.root.with_name("elsewhere"))
    assert tree.first_line().startswith("Making .venv")


def test_what_does_not_have_the_pinned_hash_is_not_installed(tree: Tree) -> None:
    wheel = tree.lock("1.0")
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr("malice.py", "")
    done = tree.run("python", "-c", "pass")
    assert done.returncode == 1
    assert "pip could not install what requirements.lock pins" in done.stderr
    log = (tree.root / ".venv/install.log").read_text()
    assert "DO NOT MATCH THE HASHES" in log
    assert not (tree.root / ".venv/stamp").exists()


def test_another_python_has_an_environment_of_its_own(tree: Tree) -> None:
    python = str(tree.bin / "python3")
    done = tree.run("python", "-c", "import sys; print(sys.prefix)", PYTHON=python)
    assert done.stdout.strip() == str(tree.root / VENV)
    assert not (tree.root / ".venv").exists()


def test_a_python_that_pyenv_keeps_is_found_behind_a_shim_that_does_not_run(tree: Tree) -> None:
    version = VENV.removeprefix(".venv-")
    tree.add_program(f"python{version}", "exit 127")
    kept = tree.root.parent / f".pyenv/versions/{version}.0/bin"
    kept.mkdir(parents=True)
    (kept / f"python{version}").symlink_to(tree.bin / "python3")
    done = tree.run("python", "-c", "import sys; print(sys.prefix)", PYTHON=version)
    assert done.stdout.strip() == str(tree.root / VENV), done.stderr


def test_help_needs_no_set_up(tree: Tree) -> None:
    for arguments in ([], ["help"], ["--help"]):
        done = tree.run(*arguments)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith("Usage: ./dev COMMAND")
    assert not (tree.root / ".venv").exists()


def test_an_old_python_is_named_and_so_is_the_way_out(tree: Tree) -> None:
    tree.add_program("python3", "echo 3.9")
    tree.add_program("python3.12", "exit 1")
    done = tree.run("test")
    assert (done.returncode, done.stdout) == (1, "")
    assert "Needed: 3.11 or newer" in done.stderr
    assert f"{tree.bin}/python3 (3.9)" in done.stderr
    assert f"{tree.bin}/python3.12 (does not run)" in done.stderr
    assert "PYTHON=/path/to/python3.13 ./dev" in done.stderr


def test_a_python_newer_than_any_that_was_tried_is_used_with_a_warning(tree: Tree) -> None:
    claims = f'case "$*" in *version_info*) echo 3.15; exit ;; esac\n{QUICK_PYTHON}'
    tree.add_program("python3", claims)
    done = tree.run("python", "-c", "print('it runs')")
    assert (done.returncode, done.stdout) == (0, "it runs\n"), done.stderr
    assert "Python 3.15 is newer than any this was tried with" in done.stderr


def test_a_python_without_venv_names_the_package_to_install(tree: Tree) -> None:
    script = f'case "$*" in *ensurepip*) exit 1 ;; esac; exec "{BASE_PYTHON}" "$@"'
    tree.add_program("python3", script)
    done = tree.run("test")
    assert done.returncode == 1
    assert f"apt install python3.{sys.version_info[1]}-venv" in done.stderr
