"""`search_files`: what is found, what is left out, and a pattern that never ends."""

from __future__ import annotations

import os
import time
from pathlib import Path

import psutil
import pytest

from bargein.contracts.tool import CallResult, CallStatus
from bargein.tools.search_child import glob_to_pattern
from bargein.tools.tool_environment import ToolSettings
from tests.conftest import BACKENDS, Backend
from tests.tools.bench_of_tools import Shop, open_shop
from tests.tools.desk import Desk, text_of, until, with_enough_time

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]


@pytest.fixture(scope="module", params=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> Backend:
    """Processes are for asyncio, on either of its loops."""
    name: str = request.param
    return BACKENDS[name]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "src/deep").mkdir(parents=True)
    (tmp_path / "src/main.py").write_text("import os\n\ndef main():\n    pass\n")
    (tmp_path / "src/deep/util.py").write_text("def Main_two():\n    pass\n")
    (tmp_path / "src/style.css").write_text("main { color: red }\n")
    (tmp_path / "README.md").write_text("The main page.\n")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git/config").write_text("main\n")
    (tmp_path / "binary").write_bytes(b"main\0main")
    (tmp_path / "link").symlink_to("src")
    (tmp_path / "passwd").symlink_to("/etc/passwd")
    os.mkfifo(tmp_path / "fifo")
    return tmp_path


async def test_lines_are_found_with_their_places(folder: Path, shop: Shop, desk: Desk) -> None:
    expected = {
        "README.md:1: The main page.",
        "src/main.py:3: def main():",
        "src/style.css:1: main { color: red }",
    }
    result = await shop.use(desk, "search_files", pattern="main")
    assert result.status is CallStatus.FINISHED
    assert set(text_of(result).splitlines()) == expected
    result = await shop.use(desk, "search_files", pattern="MAIN", ignore_case=True, glob="*.py")
    assert text_of(result).splitlines() == [
        "src/main.py:3: def main():",
        "src/deep/util.py:1: def Main_two():",
    ]
    result = await shop.use(desk, "search_files", pattern="def", path="src/deep")
    assert text_of(result) == "src/deep/util.py:1: def Main_two():"
    result = await shop.use(desk, "search_files", pattern="^import", path="src/main.py")
    assert text_of(result) == "src/main.py:1: import os"
    result = await shop.use(desk, "search_files", pattern="root:")
    assert text_of(result) == "Nothing found in 5 files."


async def test_names_are_listed_by_glob(folder: Path, shop: Shop, desk: Desk) -> None:
    for glob, names in {
        "*.py": ["src/main.py", "src/deep/util.py"],
        "src/*.py": ["src/main.py"],
        "src/**/*.py": ["src/main.py", "src/deep/util.py"],
        "*.{md,css}": ["README.md", "src/style.css"],
        "[mu]*": ["src/main.py", "src/deep/util.py"],
    }.items():
        result = await shop.use(desk, "search_files", glob=glob)
        assert text_of(result).splitlines() == names
    result = await shop.use(desk, "search_files", glob="*.py", path="src/deep")
    assert text_of(result) == "src/deep/util.py"


async def test_wrong_questions_are_told(folder: Path, shop: Shop, desk: Desk) -> None:
    for arguments, words in (
        ({"pattern": "("}, "'(' is not a usable pattern: missing ), unterminated subpattern"),
        ({"pattern": "x", "path": "nowhere"}, "nowhere does not exist."),
        ({"pattern": "x", "path": "../"}, "leads out of the workspace"),
        ({"pattern": "x", "path": "/etc"}, "outside the workspace"),
        ({"pattern": "x", "path": "passwd"}, "Only relative links"),
        ({"pattern": "x", "path": "README.md/x"}, "not a directory"),
    ):
        result = await shop.use(desk, "search_files", **arguments)
        assert result.is_error
        assert words in text_of(result), arguments


async def test_directories_of_our_own_are_not_searched(folder: Path, desk: Desk) -> None:
    """Though the child sees them, because this machine could not hide them from it."""
    home = folder / "src/home"
    home.mkdir()
    (home / "gateway.json").write_text("main secret")
    os.link(home / "gateway.json", folder / "hard")
    async with open_shop(folder, hidden=(str(home),)) as shop:
        result = await shop.use(desk, "search_files", pattern="secret")
        assert text_of(result).startswith("Nothing found")
        listed = text_of(await shop.use(desk, "search_files", path="src"))
        assert "main.py" in listed
        assert "gateway" not in listed
        for path in ("src/home", "src/home/gateway.json", "hard"):
            result = await shop.use(desk, "search_files", pattern="main", path=path)
            assert "secret" not in text_of(result), path
        refused = await shop.use(desk, "read_file", path="src/home/gateway.json")
        assert refused.is_error
        assert "belongs to Bargein itself" in text_of(refused)


async def test_results_and_long_lines_are_bounded(shop: Shop, desk: Desk) -> None:
    (shop.folder / "many.txt").write_text("x\n" * 5000)
    (shop.folder / "wide.txt").write_text("a" * 100_000 + "needle" + "b" * 100_000)
    result = await shop.use(desk, "search_files", pattern="x", results_max=10)
    lines = text_of(result).splitlines()
    assert len(lines) == 11
    assert lines[-1].startswith("[the first 10; there may be more")
    text = text_of(await shop.use(desk, "search_files", pattern="needle"))
    assert "needle" in text
    assert len(text) < 400


async def test_a_pattern_that_never_ends_is_stopped(shop: Shop, desk: Desk) -> None:
    (shop.folder / "a.txt").write_text("first\n" + "a" * 64 + "b\n")

    async def stop() -> None:
        await until(lambda: found("first") and searching())
        desk.stop()

    def found(words: str) -> bool:
        (process,) = shop.tool_environment.containment.processes or (None,)
        return process is not None and words in process.output.text()

    began_at = time.monotonic()
    result = await shop.use_and(desk, stop, "search_files", pattern="first|(a+)+$")
    assert time.monotonic() - began_at < 20
    assert result.status is CallStatus.STOPPED
    assert "Output so far:\na.txt:1: first" in text_of(result)
    assert "nothing is half done" in text_of(result)
    assert not searching()


def searching() -> bool:
    """Whether a search is at work, and has been for some time."""
    for process in psutil.Process().children(recursive=True):
        try:
            if "search_child" in " ".join(process.cmdline()):
                return process.cpu_times().user > 0.2
        except psutil.Error:
            continue
    return False


async def test_a_time_limit_keeps_what_was_found(
    warm_loop: None, tmp_path: Path, desk: Desk
) -> None:
    (tmp_path / "a.txt").write_text("first\n" + "a" * 64 + "b\n")

    async def search(timeout_s: float) -> CallResult:
        settings = ToolSettings(search_timeout_s=timeout_s)
        async with open_shop(tmp_path, settings=settings) as shop:
            return await shop.use(desk, "search_files", pattern="first|(a+)+$")

    result, limit_s = await with_enough_time(
        search, lambda result: "Output so far" in text_of(result), 0.7
    )
    assert result.status is CallStatus.STOPPED
    assert f"its time limit of {limit_s:g} s was reached" in text_of(result)
    assert "a.txt:1: first" in text_of(result)


@pytest.mark.parametrize(
    ("glob", "fits", "does_not"),
    [
        ("*.py", ["a.py", "b/a.py"], ["a.pyc", "py"]),
        ("a/*", ["a/b"], ["a/b/c", "b/a/c"]),
        ("**/x", ["x", "a/x", "a/b/x"], ["ax", "a/bx"]),
        ("a/**", ["a/b", "a/b/c"], ["b/a"]),
        ("a/**/b", ["a/b", "a/x/y/b"], ["a/xb"]),
        ("?.txt", ["a.txt"], ["ab.txt", ".txt"]),
        ("[!a].txt", ["b.txt"], ["a.txt"]),
        ("a.{b,c}", ["a.b", "a.c"], ["a.d", "a.bc"]),
        ("[", ["["], ["a"]),
        ("{a", ["{a"], ["a"]),
        ("a+b(c)", ["a+b(c)"], ["aab"]),
    ],
)
def test_globs(glob: str, fits: list[str], does_not: list[str]) -> None:
    pattern = glob_to_pattern(glob)
    assert [path for path in fits if not pattern.match(path)] == []
    assert [path for path in does_not if pattern.match(path)] == []
