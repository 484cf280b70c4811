"""File tools through the registry: what they read, how they write, and what a stop leaves."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import anyio
import pytest

from bargein.cancel import Cancelled, CancelSource, Cause, TaskOwner
from bargein.contracts.tool import CallResult, CallStatus, Effect, PlannedCall
from bargein.tools import ToolRegistry, invoke
from bargein.tools.atomic import Version, write_atomically
from bargein.tools.files import file_tools
from bargein.tools.workspace import PathRefused, Workspace
from tests.tools.desk import Desk, call, text_of

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(30)]


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace(tmp_path)


@pytest.fixture
async def registry(workspace: Workspace) -> AsyncIterator[ToolRegistry]:
    async with TaskOwner():
        yield ToolRegistry(file_tools(workspace))


@pytest.fixture(autouse=True)
def leaves_no_temporary_file(tmp_path: Path) -> Iterator[None]:
    yield
    assert list(tmp_path.rglob("*.tmp")) == []


async def use(registry: ToolRegistry, desk: Desk, name: str, **arguments: object) -> CallResult:
    return await invoke(registry, call(name, **arguments), desk.context())


async def test_a_file_is_read(registry: ToolRegistry, desk: Desk, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\nthree")
    result = await use(registry, desk, "read_file", path="a.txt")
    assert (result.status, text_of(result)) == (CallStatus.FINISHED, "one\ntwo\nthree")
    result = await use(registry, desk, "read_file", path="a.txt", first_line=2, lines=1)
    assert text_of(result) == "two\n\n[lines 2 to 2; there is more: first_line=3 reads on]"
    result = await use(registry, desk, "read_file", path="a.txt", first_line=3)
    assert text_of(result) == "three"


async def test_a_long_file_is_read_piece_by_piece_without_a_gap(
    registry: ToolRegistry, desk: Desk, tmp_path: Path
) -> None:
    lines = [f"line {number} " + "ä" * 50 for number in range(1, 5001)]
    (tmp_path / "long.txt").write_text("\n".join(lines) + "\n")
    read: list[str] = []
    first_line = 1
    while True:
        text = text_of(
            await use(registry, desk, "read_file", path="long.txt", first_line=first_line)
        )
        body, _, note = text.rpartition("\n[lines ")
        read += (body if note and "there is more" in note else text).splitlines()
        if "there is more" not in note:
            break
        first_line = int(note.partition("first_line=")[2].partition(" ")[0])
    assert read == lines


async def test_what_cannot_be_shown_gets_a_sentence(
    registry: ToolRegistry, desk: Desk, tmp_path: Path
) -> None:
    (tmp_path / "binary").write_bytes(b"\x7fELF\0\0")
    (tmp_path / "wide.txt").write_text("hello", encoding="utf-16")
    (tmp_path / "latin.txt").write_bytes("Käse\n".encode("latin-1"))
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "one_line.txt").write_text("x" * 200_000)
    (tmp_path / "main.py").write_text("pass")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "fifo")
    expected = {
        "binary": "binary is a binary file of 6 bytes",
        "wide.txt": "wide.txt is UTF-16 text",
        "latin.txt": "K\ufffdse\n\n[not all of it is UTF-8",
        "empty.txt": "(empty.txt is empty.)",
        "one_line.txt": "only the beginning of line 1",
        "mian.py": "mian.py does not exist. Did you mean main.py?",
        "no/file": "no/file does not exist: a directory on the way is missing.",
        "main.py/x": "main.py/x goes through something that is not a directory.",
        "folder": "folder is a directory. It contains:\n(nothing)",
        ".": "empty.txt\nfifo\nfolder/",
        "fifo": "fifo is a FIFO, not a regular file.",
        "x" * 300: "is too long a name.",
    }
    for path, words in expected.items():
        assert words in text_of(await use(registry, desk, "read_file", path=path)), path
    result = await use(registry, desk, "read_file", path="main.py", first_line=9)
    assert "main.py has only 0 lines; there is no line 9." in text_of(result)


async def test_a_file_is_written_with_its_directories_and_keeps_its_mode(
    registry: ToolRegistry, desk: Desk, tmp_path: Path
) -> None:
    result = await use(registry, desk, "write_file", path="a/b/run.sh", content="echo ä\n")
    assert text_of(result) == "Wrote a/b/run.sh: 8 bytes, a new file."
    path = tmp_path / "a/b/run.sh"
    assert path.read_text() == "echo ä\n"
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~umask
    path.chmod(0o750)
    result = await use(registry, desk, "write_file", path="a/b/run.sh", content="new")
    assert text_of(result) == "Wrote a/b/run.sh: 3 bytes, replaced."
    assert stat.S_IMODE(path.stat().st_mode) == 0o750


async def test_writing_through_a_link_inside_changes_its_target(
    registry: ToolRegistry, desk: Desk, tmp_path: Path
) -> None:
    (tmp_path / "real.txt").write_text("old")
    (tmp_path / "link.txt").symlink_to("real.txt")
    await use(registry, desk, "write_file", path="link.txt", content="new")
    assert (tmp_path / "link.txt").is_symlink()
    assert (tmp_path / "real.txt").read_text() == "new"


async def test_writing_out_of_the_workspace_is_refused_before_it_starts(
    registry: ToolRegistry, desk: Desk, tmp_path: Path
) -> None:
    outside = tmp_path.parent / f"{tmp_path.name}-outside"
    outside.mkdir()
    (tmp_path / "way").symlink_to(f"../{outside.name}")
    (tmp_path / "link").symlink_to(f"../{outside.name}/new")
    for path in (f"../{outside.name}/x", f"{outside}/x", "way/x", "link", "way/deeper/x"):
        for name, more in (
            ("write_file", {"content": "x"}),
            ("edit_file", {"old_text": "a", "new_text": "b"}),
        ):
            result = await use(registry, desk, name, path=path, **more)
            assert result.status is CallStatus.NOT_STARTED
    assert list(outside.iterdir()) == []
    outside.rmdir()


async def test_what_is_no_file_is_not_overwritten(
    registry: ToolRegistry, desk: Desk, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "folder").mkdir()
    for path, words in (("fifo", "is a FIFO"), ("folder", "is a directory"), (".", "directory")):
        result = await use(registry, desk, "write_file", path=path, content="x")
        assert result.status is CallStatus.FAILED
        assert words in text_of(result)
    assert stat.S_ISFIFO((tmp_path / "fifo").stat().st_mode)


async def test_an_edit_replaces_exactly_what_was_named_and_shows_it(
    registry: ToolRegistry, desk: Desk, tmp_path: Path
) -> None:
    path = tmp_path / "a.py"
    path.write_text("".join(f"x{number} = {number}\n" for number in range(1, 10)))
    result = await use(
        registry, desk, "edit_file", path="a.py", old_text="x5 = 5", new_text="x5 = [\n    5\n]"
    )
    assert result.status is CallStatus.FINISHED
    assert path.read_text().splitlines()[3:8] == ["x4 = 4", "x5 = [", "    5", "]", "x6 = 6"]
    assert "     5  x5 = [\n     6      5\n     7  ]\n     8  x6 = 6" in text_of(result)
    result = await use(
        registry, desk, "edit_file", path="a.py", old_text="= ", new_text="=", every=True
    )
    assert "in 9 places" in text_of(result)
    assert path.read_text().startswith("x1 =1\nx2 =2\n")


async def test_an_edit_that_does_not_fit_says_why_and_changes_nothing(
    registry: ToolRegistry, desk: Desk, tmp_path: Path
) -> None:
    text = "def a():\n    return 1\n\ndef b():\n    return 1\n"
    (tmp_path / "a.py").write_text(text)
    (tmp_path / "latin.txt").write_bytes(b"K\xe4se")
    (tmp_path / "binary").write_bytes(b"a\0b")
    cases = {
        ("a.py", "return 1"): "is in a.py 2 times (lines 2, 5). Include more of the text around it",
        (
            "a.py",
            "def a():\n  return 1",
        ): "With different whitespace it is at line 1, which reads:\ndef a():\n    return 1",
        ("a.py", "def a():\n    return 2"): "Line 1 resembles its beginning: def a():.",
        ("a.py", "zzz"): "old_text is not in a.py. Read the file",
        ("a.py", ""): "old_text is empty",
        ("b.py", "x"): "b.py does not exist. Did you mean a.py?",
        ("latin.txt", "K"): "is not UTF-8 text (byte 1)",
        ("binary", "a"): "is a binary file",
    }
    for (path, old), words in cases.items():
        result = await use(registry, desk, "edit_file", path=path, old_text=old, new_text="new")
        assert result.status is CallStatus.FAILED
        assert words in text_of(result), (path, old)
    assert (tmp_path / "a.py").read_text() == text
    assert (tmp_path / "latin.txt").read_bytes() == b"K\xe4se"


async def test_line_ends_and_a_byte_order_mark_are_kept(
    registry: ToolRegistry, desk: Desk, tmp_path: Path
) -> None:
    path = tmp_path / "dos.txt"
    path.write_bytes(b"\xef\xbb\xbfone\r\ntwo\r\nthree\r\n")
    await use(registry, desk, "edit_file", path="dos.txt", old_text="one\ntwo", new_text="1\n2")
    assert path.read_bytes() == b"\xef\xbb\xbf1\r\n2\r\nthree\r\n"


async def test_two_edits_of_one_file_under_two_names_do_not_lose_each_other(
    registry: ToolRegistry, desk: Desk, tmp_path: Path
) -> None:
    (tmp_path / "a.txt").write_text("".join(f"<{number}>\n" for number in range(20)))
    (tmp_path / "b.txt").symlink_to("a.txt")
    results: list[CallResult] = []

    async def edit(number: int) -> None:
        path = ("a.txt", "b.txt", f"{tmp_path}/a.txt", "./a.txt")[number % 4]
        results.append(
            await use(registry, desk, "edit_file", path=path, old_text=f"<{number}>", new_text="x")
        )

    async with anyio.create_task_group() as group:
        for number in range(20):
            group.start_soon(edit, number)
    assert {result.status for result in results} == {CallStatus.FINISHED}
    assert (tmp_path / "a.txt").read_text() == "x\n" * 20


async def test_plans_tell_effects_and_resources(registry: ToolRegistry, tmp_path: Path) -> None:
    planned = registry.plan(call("write_file", path="x/../a", content=""))
    assert isinstance(planned, PlannedCall)
    assert (planned.effect, planned.title) == (Effect.IDEMPOTENT, "write x/../a")
    assert planned.resources == (f"file:{tmp_path}/a",)
    planned = registry.plan(call("read_file", path="a"))
    assert isinstance(planned, PlannedCall)
    assert (planned.effect, planned.resources) == (Effect.NONE, ())


class StopsAt:
    """Bytes of a file whose reading cancels the writer at a chosen chunk."""

    def __init__(self, source: CancelSource, chunk: int) -> None:
        self._source = source
        self._left = chunk

    def tick(self) -> None:
        self._left -= 1
        if self._left == 0:
            self._source.cancel(Cause.USER_STOP)


@pytest.mark.parametrize("moment", range(8))
async def test_a_write_stopped_at_any_moment_leaves_old_or_new(
    workspace: Workspace, tmp_path: Path, moment: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    new = b"n" * (3 << 20)
    source = CancelSource("write")
    ticks = StopsAt(source, moment)
    for name in ("write", "fsync", "fchmod", "rename"):
        real = getattr(os, name)

        def ticking(*args: object, _real: object = real, **more: object) -> object:
            ticks.tick()
            return _real(*args, **more)  # type: ignore[operator]

        monkeypatch.setattr(os, name, ticking)
    happened = False
    try:
        with workspace.place("file") as place:
            write_atomically(place, new, source.token)
        happened = True
    except Cancelled:
        pass
    assert path.read_bytes() == (new if happened else b"old")
    assert happened == (moment == 0 or moment > 5)


def test_a_write_that_is_killed_leaves_old_or_new(tmp_path: Path) -> None:
    """SIGKILL at moments spread over the write, in a process of its own."""
    program = (
        "import sys\n"
        "from bargein.cancel import CancelSource\n"
        "from bargein.tools.atomic import write_atomically\n"
        "from bargein.tools.workspace import Workspace\n"
        "print('ready', flush=True)\n"
        "for number in range(10**9):\n"
        "    with Workspace(sys.argv[1]).place('file') as place:\n"
        "        content = b'%d' % (number % 10) * (1 << 20)\n"
        "        write_atomically(place, content, CancelSource('x').token)\n"
    )
    path = tmp_path / "file"
    path.write_bytes(b"0" * (1 << 20))
    for delay_ms in range(0, 40, 4):
        with subprocess.Popen(
            [sys.executable, "-c", program, tmp_path], stdout=subprocess.PIPE
        ) as writer:
            assert writer.stdout is not None
            writer.stdout.readline()
            threading.Event().wait(delay_ms / 1000)
            writer.send_signal(signal.SIGKILL)
        content = path.read_bytes()
        assert len(content) == 1 << 20
        assert len(set(content)) == 1
    for left in tmp_path.glob(".bargein-*.tmp"):
        left.unlink()


async def test_an_edit_does_not_overwrite_what_changed_meanwhile(
    workspace: Workspace, tmp_path: Path
) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    version = Version.of(path.stat())
    path.write_text("changed by somebody")
    with workspace.place("file") as place, pytest.raises(PathRefused, match="changed by something"):
        write_atomically(place, b"new", CancelSource("x").token, replaces=version)
    assert path.read_text() == "changed by somebody"


async def test_a_stopped_write_says_that_the_file_is_as_it_was(
    registry: ToolRegistry, desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("old")
    real = os.fsync

    def stop_first(descriptor: int) -> None:
        desk.stop()
        real(descriptor)

    monkeypatch.setattr(os, "fsync", stop_first)
    result = await use(registry, desk, "write_file", path="file", content="new")
    assert result.status is CallStatus.STOPPED
    assert "The file is as it was before." in text_of(result)
    assert (tmp_path / "file").read_text() == "old"


@pytest.fixture
def nobodys_folder() -> Iterator[Path]:
    """A folder of a user to whom modes mean something; root becomes that user for a while."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    if os.geteuid() != 0:
        yield folder
    else:
        os.chown(folder, 65534, 65534)
        os.seteuid(65534)
        yield folder
        os.seteuid(0)
    shutil.rmtree(folder)


def test_a_read_only_file_is_not_replaced(nobodys_folder: Path) -> None:
    path = nobodys_folder / "file"
    path.write_text("old")
    path.chmod(0o444)
    with (
        Workspace(nobodys_folder).place("file") as place,
        pytest.raises(PathRefused, match="file is read-only"),
    ):
        write_atomically(place, b"new", CancelSource("x").token)
    assert path.read_text() == "old"


def test_a_write_into_a_folder_that_may_not_be_listed_has_happened(nobodys_folder: Path) -> None:
    """What comes after the rename must not make a failure of it."""
    folder = nobodys_folder / "closed"
    folder.mkdir()
    (folder / "file").write_text("old")
    folder.chmod(0o300)
    try:
        with Workspace(nobodys_folder).place("closed/file") as place:
            assert not write_atomically(place, b"new", CancelSource("x").token)
    finally:
        folder.chmod(0o700)
    assert [each.name for each in folder.iterdir()] == ["file"]
    assert (folder / "file").read_text() == "new"
