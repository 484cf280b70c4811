"""The sandbox as tools, sessions and the user meet it."""

# ruff: noqa: ASYNC221, ASYNC240  (that a test touches files holds nobody up)

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import anyio
import psutil
import pytest

from bargein import Agent, Engine
from bargein.cancel import CancelSource, Cause
from bargein.contracts.event import CallEnded
from bargein.contracts.permission import PermissionMode
from bargein.contracts.tool import CallResult
from bargein.models.script import Answer, Call, Say
from bargein.models.scripted import ScriptedModel
from bargein.process import Means, Network, SandboxView, open_containment
from bargein.runtime.config import load_config
from bargein.sandbox.command_sandbox import CommandSandbox
from bargein.sandbox.protected_paths import git_folders
from bargein.session.session import Session
from bargein.tools import Policy
from tests.mcp.harness import SERVERS, bad_server
from tests.process.conftest import CERTAIN
from tests.process.ordinary_user import NOBODY, as_ordinary_user
from tests.session.test_permission import question_of
from tests.tools.desk import text_of, until

pytestmark = pytest.mark.anyio
ROOT = os.geteuid() == 0


@pytest.fixture
def outside() -> Iterator[Path]:
    """A folder that is not in /tmp, with a workspace `work` and a home directory."""
    above = "/srv" if ROOT else os.path.expanduser("~")
    made = Path(tempfile.mkdtemp(prefix="bargein-sandbox-", dir=above))
    (made / "work").mkdir()
    (made / "home").mkdir()
    yield made
    shutil.rmtree(made, ignore_errors=True)


Made = tuple[str, dict[str, object]]


def script(*calls: Made) -> ScriptedModel:
    answers = []
    for name, arguments in calls:
        answers += [Answer([Call(name, arguments)]), Answer([Say("Done.")])]
    return ScriptedModel(answers)


@asynccontextmanager
async def opened(outside: Path, *calls: Made, **variables: str) -> AsyncIterator[Engine]:
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(outside / "home"),
        "BARGEIN_HOME": str(outside / "data"),
        "BARGEIN_SANDBOX_COMMANDS": "on",
        **variables,
    }
    config = load_config(environment, folder=outside / "work")
    agent = Agent(script(*calls), workspace=outside / "work")
    async with Engine(agent, store="memory", config=config) as engine:
        assert engine.sandbox is not None
        if not engine.sandbox.holds:
            pytest.skip(f"no sandbox here: {engine.sandbox.detail}")
        yield engine


async def result_of(session: Session, text: str = "go") -> CallResult:
    """The result of the one call that the turn makes."""
    await (await session.send(text)).result()
    ended = [each.event for each in await session.events() if isinstance(each.event, CallEnded)]
    return ended[-1].result


async def test_a_command_writes_to_the_workspace_and_its_own_tmp_only(outside: Path) -> None:
    command = f"echo in > in; echo tmp > /tmp/kept; echo out > {outside}/out"
    calls: list[Made] = [
        ("terminal", {"command": command}),
        ("terminal", {"command": "cat in /tmp/kept"}),
    ]
    async with opened(outside, *calls, ("terminal", {"command": "ls -A /tmp"})) as engine:
        room = "matrix:!abcdefghijklmnopqr:matrix.example.org"
        session = await engine.session(f"{room}:$first-thread")
        result = await result_of(session)
        assert "Read-only file system" in text_of(result)
        assert "call again with outside=true" in text_of(result)
        how = "allow it outside, or set sandbox.hosts or sandbox.writable"
        assert result.summary == f"exit code 1; the sandbox may be why: {how}"
        # The next command of the session has the same /tmp.
        assert text_of(await result_of(session)).startswith("in\ntmp\n")
        # Another session has not, however long the beginning is that their names share.
        other = await engine.session(f"{room}:$second-thread")
        assert "kept" not in text_of(await result_of(other))
    assert not (outside / "out").exists()
    assert not Path("/tmp/kept").exists()


async def test_a_session_fills_its_own_tmp_up_to_the_limit(outside: Path) -> None:
    fill = "head -c 3000000 /dev/zero > /tmp/one; head -c 9000000 /dev/zero > /tmp/two; echo over"
    calls: list[Made] = [
        ("terminal", {"command": fill}),
        ("terminal", {"command": "stat -c %s /tmp/one; stat -fc %T /tmp"}),
        ("terminal", {"command": "ls -A /tmp; head -c 5000000 /dev/zero > /tmp/three; echo fine"}),
    ]
    async with opened(outside, *calls, BARGEIN_LIMITS_TMP_MEGABYTES="8") as engine:
        session = await engine.session("s1")
        said = text_of(await result_of(session))
        assert "No space left on device" in said
        assert "over" in said
        # It stays from one command to the next.
        assert text_of(await result_of(session)).startswith("3000000\ntmpfs\n")
        said = text_of(await result_of(await engine.session("s2")))
        assert "one" not in said.split()
        assert "fine" in said.split()


async def test_the_systems_folder_for_temporary_files_may_be_a_link(
    outside: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "link"))
    async with opened(outside, ("terminal", {"command": "touch /tmp/a && ls /tmp"})) as engine:
        assert text_of(await result_of(await engine.session("s1"))).startswith("a\n")


async def test_python_in_the_sandbox_can_call_tools(outside: Path) -> None:
    code = (
        "from bargein_tools import terminal, write_file\n"
        "write_file('a.txt', 'hello')\n"
        "print(open('a.txt').read(), terminal('cat a.txt; cat /proc/1/comm').splitlines()[0])\n"
        f"open('{outside}/out', 'w')"
    )
    async with opened(outside, ("python", {"code": code})) as engine:
        result = await result_of(await engine.session("s1"))
    assert "hello hello" in text_of(result)
    assert "OSError: [Errno 30] Read-only file system" in text_of(result)
    assert not (outside / "out").exists()


async def test_leaving_the_sandbox_takes_approval(outside: Path) -> None:
    leave: Made = ("terminal", {"command": f"echo out > {outside}/out", "outside": True})
    async with opened(outside, leave, leave) as engine:
        session = await engine.session("s1")
        for answer, arrives in (("deny", False), ("allow", True)):
            turn = await session.send("go")
            asked = await question_of(session)
            assert "it leaves the sandbox" in asked.question.text
            await session.answer(asked.id, answer)
            await turn.result()
            assert (outside / "out").exists() is arrives


async def test_plan_mode_runs_commands_that_change_nothing(outside: Path) -> None:
    (outside / "work/file").write_text("as it was")
    calls: list[Made] = [
        ("terminal", {"command": "cat file; echo x > file; echo x > new; echo $?"}),
        ("terminal", {"command": "true", "outside": True}),
        ("terminal", {"command": "echo y > file"}),
    ]
    async with opened(outside, *calls) as engine:
        session = await engine.session("s1")
        await session.set_mode(PermissionMode.PLAN)
        said = text_of(await result_of(session))
        assert said.startswith("as it was")
        assert "Read-only file system" in said
        assert sorted(path.name for path in (outside / "work").iterdir()) == ["file"]
        assert (outside / "work/file").read_text() == "as it was"
        refused = await result_of(session)
        assert "plan" in text_of(refused)
        await session.set_mode(PermissionMode.ASK)
        await result_of(session)
        assert (outside / "work/file").read_text() == "y\n"


async def test_a_repository_planted_for_the_users_git_is_set_aside_and_both_are_told(
    outside: Path,
) -> None:
    work = outside / "work"
    subprocess.run(["git", "init", "-q", work], check=True)
    command = (
        "git init -q evil; cd evil; git -c user.name=x -c user.email=x@y commit -q --allow-empty "
        f"-m x; git config core.fsmonitor 'touch {outside}/out; false'; cd ..; git update-index "
        "--add --cacheinfo 160000,$(git -C evil rev-parse HEAD),evil"
    )
    async with opened(outside, ("terminal", {"command": command})) as engine:
        result = await result_of(await engine.session("s1"))
    assert "renamed: evil/.git.set-aside" in text_of(result)
    assert result.summary == "finished; the sandbox set aside what it planted for git"
    subprocess.run(["git", "status"], cwd=work, check=True, capture_output=True)
    assert not (outside / "out").exists()


async def test_our_own_snapshots_run_nothing_that_a_command_planted(outside: Path) -> None:
    command = (
        "git init -q evil; echo a > evil/a; git -C evil add a; "
        "git -C evil -c user.name=x -c user.email=x@y commit -qm x; "
        f"git -C evil config core.fsmonitor 'touch {outside}/out; false'; "
        f"git -C evil config filter.q.clean 'touch {outside}/out; cat'; "
        "echo '* filter=q' | tee .gitattributes > evil/.gitattributes; echo more >> evil/a"
    )
    calls: list[Made] = [
        ("terminal", {"command": command}),
        ("terminal", {"command": "echo >> evil/a"}),
    ]
    async with opened(outside, *calls) as engine:
        session = await engine.session("s1")
        for _ in calls:
            await result_of(session)
        undone = await session.undo(files=True)
    assert undone.files is not None
    assert [each.path for each in undone.files.files] == ["evil/a"]
    assert not (outside / "out").exists()


async def test_files_that_git_runs_by_are_asked_about_in_every_mode_but_full(outside: Path) -> None:
    (outside / "work/.git/hooks").mkdir(parents=True)
    (outside / "work/link").symlink_to(".git")
    git = "git runs programs that its folder names"
    calls: list[Made] = [
        ("write_file", {"path": ".git/hooks/pre-commit", "content": "#!/bin/sh\n"}),
        ("edit_file", {"path": "a/../.GIT/config", "old_text": "a", "new_text": "b"}),
        ("write_file", {"path": "bargein.toml", "content": "mode = 'full'\n"}),
        ("write_file", {"path": "link/hooks/later", "content": "#!/bin/sh\n"}),
        ("write_file", {"path": "src/git.py", "content": "pass\n"}),
    ]
    async with opened(outside, *calls) as engine:
        session = await engine.session("s1")
        await session.set_mode(PermissionMode.AUTO_EDIT)
        for why in (git, git, "it has settings of Bargein"):
            turn = await session.send("go")
            asked = await question_of(session)
            assert why in asked.question.text
            await session.answer(asked.id, "deny")
            await turn.result()
        refused = await result_of(session)
        assert "leads to .git/hooks/later by a link" in text_of(refused)
        await result_of(session)
    assert list((outside / "work/.git/hooks").iterdir()) == []
    assert not (outside / "work/bargein.toml").exists()
    assert (outside / "work/src/git.py").exists()


async def test_a_folder_with_a_hidden_one_in_it_cannot_be_moved(outside: Path) -> None:
    secret = outside / "home/.local/share/keyrings/key"
    secret.parent.mkdir(parents=True)
    secret.write_text("private")
    local = outside / "home/.local"
    command = f"mv {local}/share {local}/moved; cat {local}/moved/keyrings/key; echo x > {local}/y"
    calls: list[Made] = [("terminal", {"command": command})] * 2
    writable = {"BARGEIN_SANDBOX_WRITABLE": str(local)}
    async with opened(outside, *calls, **writable) as engine:
        session = await engine.session("s1")
        for _ in calls:
            assert "private" not in text_of(await result_of(session))
    assert secret.read_text() == "private"
    assert (local / "y").exists()


async def test_an_interpreter_in_a_temporary_folder_stays_usable(
    outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The code of `python` runs in our own interpreter, which may have been installed in /tmp."""
    with tempfile.TemporaryDirectory() as place, tempfile.TemporaryDirectory() as other:
        for folder in (place, other):
            (Path(folder) / "it").write_text("still here")
        monkeypatch.setattr(sys, "prefix", place)
        command = f"cat {place}/it; echo x > {place}/it; cat {other}/it"
        async with opened(outside, ("terminal", {"command": command})) as engine:
            said = text_of(await result_of(await engine.session("s1")))
        assert said.count("still here") == 1
        assert "Read-only file system" in said
        assert "No such file" in said


async def test_an_mcp_server_runs_in_the_sandbox_if_a_setting_says_so(outside: Path) -> None:
    server = bad_server("modern")
    # A copy, because this repository may itself be in /tmp, which the sandbox covers.
    program = str(shutil.copy(SERVERS / "bad.py", outside))
    words = shlex.join([server.command, "-I", "-S", program, "modern"])
    wrapped = replace(
        server,
        command="sh",
        args=("-c", f"echo x > {outside}/out; echo x > in; cat /proc/1/comm >> in; exec {words}"),
    )
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(outside / "home"),
        "BARGEIN_HOME": str(outside / "data"),
        "BARGEIN_SANDBOX_MCP": "on",
    }
    model = ScriptedModel([[Call("mcp__bad__echo", {"text": "42"})], [Say("Done")]])
    agent = Agent(model, workspace=outside / "work", mcp=[wrapped], policy=Policy())
    config = load_config(environment, folder=outside / "work")
    async with Engine(agent, store="memory", config=config) as engine:
        session = await engine.session("s1")
        result = await result_of(session)
        if engine.sandbox is None or not engine.sandbox.holds:
            pytest.skip("no sandbox here")
        assert text_of(result) == "42"
    assert (outside / "work/in").exists()
    assert not (outside / "out").exists()


async def test_without_the_setting_there_is_no_sandbox(outside: Path) -> None:
    environment = {"PATH": os.environ["PATH"], "HOME": str(outside / "home")}
    config = load_config(environment, folder=outside / "work")
    agent = Agent(script(), workspace=outside / "work")
    async with Engine(agent, store="memory", config=config) as engine:
        assert engine.sandbox is None
        terminal = next(tool for tool in engine.tools if tool.name == "terminal")
        assert b"outside" not in bytes(terminal.parameters)


async def test_git_works_in_the_sandbox_also_in_a_worktree(outside: Path) -> None:
    main, work = outside / "main", outside / "work"
    work.rmdir()
    identity = ["-c", "user.name=x", "-c", "user.email=x@y"]
    steps: list[list[str | Path]] = [
        ["init", "-q", main],
        ["-C", main, *identity, "commit", "-q", "--allow-empty", "-m", "first"],
        ["-C", main, "worktree", "add", "-q", work],
    ]
    for words in steps:
        subprocess.run(["git", *words], check=True)
    folders = git_folders(str(work))
    assert folders.writable == (str(main / ".git"),)
    command = (
        "echo x > f && git add f && git -c user.name=x -c user.email=x@y commit -qm second && "
        f"git log --oneline | wc -l; echo evil > {main}/.git/hooks/pre-commit; echo evil > .git"
    )
    async with opened(outside, ("terminal", {"command": command})) as engine:
        said = text_of(await result_of(await engine.session("s1")))
    assert said.startswith("2\n")
    assert not (main / ".git/hooks/pre-commit").exists()
    assert (work / ".git").read_text().startswith("gitdir:")


async def test_a_repository_that_appears_is_protected_from_the_next_command_on(
    outside: Path,
) -> None:
    calls: list[Made] = [
        ("terminal", {"command": "git init -q . && ls .git/config"}),
        ("terminal", {"command": "echo evil > .git/config; echo evil > .git/hooks/x; ls"}),
    ]
    async with opened(outside, *calls) as engine:
        session = await engine.session("s1")
        assert text_of(await result_of(session)).startswith(".git/config")
        await result_of(session)
    assert "evil" not in (outside / "work/.git/config").read_text()
    assert not (outside / "work/.git/hooks/x").exists()


async def test_a_receipt_names_the_sandbox(outside: Path) -> None:
    async with opened(outside, ("terminal", {"command": "touch up; sleep 60"})) as engine:
        session = await engine.session("s1")
        turn = await session.send("go")
        await until((outside / "work/up").exists)
        receipt = await session.interrupt()
        await turn.result()
    assert receipt is not None
    details = [step.detail for step in receipt.steps if step.detail is not None]
    assert [(each.means.split(",")[1], each.confirmed) for each in details] == [
        (" in a sandbox (namespaces)", True)
    ]


async def test_a_home_directory_as_workspace_makes_commands_ask(tmp_path: Path) -> None:
    async with await open_containment(network="none") as containment:
        if not containment.report.sandbox.holds:
            pytest.skip(containment.report.sandbox.detail)
        home = {"HOME": str(tmp_path / "home")}
        assert CommandSandbox(containment, str(tmp_path / "work"), tmp_path, home).why_not == ""
        around = CommandSandbox(containment, str(tmp_path), tmp_path, home)
        assert "home directory" in around.why_not


async def test_landlock_alone_makes_commands_ask(tmp_path: Path) -> None:
    async with await open_containment(network="none", sandbox="Landlock") as containment:
        report = containment.report.sandbox
        if not report.means:
            pytest.skip(report.detail)
        assert not report.holds
        closed_in = CommandSandbox(containment, str(tmp_path), tmp_path, {"HOME": "/nowhere"})
        assert "by Landlock alone" in closed_in.why_not


@pytest.mark.parametrize("means", CERTAIN, ids=str)
async def test_a_view_is_needed_in_a_sandbox_and_nowhere_else(tmp_path: Path, means: Means) -> None:
    view = SandboxView(str(tmp_path))
    cases: list[tuple[Network | None, SandboxView | None]] = [("none", None), (None, view)]
    for network, given in cases:
        async with await open_containment(means.value, network=network) as containment:
            if network and not containment.report.sandbox.means:
                pytest.skip(containment.report.sandbox.detail)
            with CancelSource("test") as source, pytest.raises(ValueError, match="needs a view"):
                await containment.spawn(["true"], cwd="/", env={}, token=source.token, view=given)


OWNER = """
import asyncio, os, sys
from bargein.cancel import CancelSource
from bargein.process import SandboxView, open_containment

async def main():
    async with await open_containment(sys.argv[1], network="none") as containment:
        with CancelSource("owner") as source:
            view = SandboxView(sys.argv[2]) if containment.report.sandbox.means else None
            process = await containment.spawn(
                ["sh", "-c", "trap '' TERM; setsid sleep 300 & sleep 300"], cwd="/",
                env={"PATH": "/usr/bin:/bin"}, token=source.token, view=view,
            )
            print(containment.report.sandbox.means or "none", process.pid, flush=True)
            await process.wait()

asyncio.run(main())
"""


@pytest.mark.parametrize("user", ["us", "ordinary"] if ROOT else ["us"])
@pytest.mark.parametrize("means", CERTAIN, ids=str)
def test_a_kill_of_all_our_processes_at_once_ends_commands(
    outside: Path, means: Means, user: str
) -> None:
    """Program, helper and supervisor get no chance to act. The namespace ends all the same."""
    before = as_ordinary_user() if user == "ordinary" else []
    if user == "ordinary":
        os.chown(outside, NOBODY, NOBODY)
        means = Means.SUPERVISOR
    with subprocess.Popen(
        [*before, sys.executable, "-c", OWNER, means.value, outside],
        stdout=subprocess.PIPE,
        text=True,
    ) as owner:
        assert owner.stdout is not None
        how, pid = owner.stdout.readline().split()
        if how != "namespaces":
            owner.kill()
            pytest.skip("no namespaces here")
        command = psutil.Process(int(pid))
        started = [command, *command.children(recursive=True)]
        ours = psutil.Process(owner.pid).children(recursive=True)
        own = [each for each in ours if each not in started]
        # Stopped first, so that none of them can do anything about the death of another.
        own = [each for each in own if not _is_first_of_namespace(each)]
        for each in (*own, psutil.Process(owner.pid)):
            each.send_signal(signal.SIGSTOP)
        for each in (*own, psutil.Process(owner.pid)):
            each.kill()
    _gone, alive = psutil.wait_procs(started, timeout=10)
    assert alive == []


def _is_first_of_namespace(process: psutil.Process) -> bool:
    for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
        if line.startswith("NSpid:"):
            numbers = line.split()[1:]
            return len(numbers) > 1 and numbers[-1] == "1"
    return False


@pytest.mark.parametrize("means", CERTAIN, ids=str)
async def test_a_stop_in_the_sandbox_is_confirmed_and_names_everybody(
    tmp_path: Path, means: Means
) -> None:
    async with await open_containment(means.value, network="none") as containment:
        if not containment.report.sandbox.means:
            pytest.skip(containment.report.sandbox.detail)
        with CancelSource("test") as source:
            ready = anyio.Event()
            process = await containment.spawn(
                ["sh", "-c", "setsid sleep 1001 & (sleep 1002 &) ; echo up; sleep 1003"],
                cwd="/",
                env={"PATH": "/usr/bin:/bin"},
                token=source.token,
                view=SandboxView(str(tmp_path)),
                on_output=lambda _data: ready.set(),
            )
            await ready.wait()
            source.cancel(Cause.USER_STOP)
            report = await process.stop()
    assert report.confirmed
    assert report.survivors == ()
    ended = " ".join(each.command for each in report.processes)
    assert all(name in ended for name in ("sleep 1001", "sleep 1002"))
    assert "helper.main" not in ended
    assert process.exit is not None
