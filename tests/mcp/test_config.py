"""Which servers are configured: the user's files, the project's after approval, the command."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from bargein.cli.program import run
from bargein.errors import UserError
from bargein.runtime.config import Config, load_config, trust_file
from tests.mcp.harness import SERVERS, house


@pytest.fixture
def around(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """An environment with a config directory of its own, and a project to be in."""
    project = tmp_path / "project"
    project.mkdir()
    monkeypatch.chdir(project)
    names = {"XDG_CONFIG_HOME": str(tmp_path / "config"), "BARGEIN_HOME": str(tmp_path / "data")}
    for name, value in names.items():
        monkeypatch.setenv(name, value)
    return {**names, "HOME": str(tmp_path), "PATH": os.environ["PATH"]}


def write(path: Path, servers: dict[str, object]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"mcpServers": servers}))
    return path


def loaded(around: dict[str, str]) -> Config:
    return load_config(around, folder=Path.cwd())


def names(config: Config) -> list[str]:
    return [each.name for each in config.mcp.servers] if config.mcp is not None else []


def own_file(around: dict[str, str]) -> Path:
    return Path(around["XDG_CONFIG_HOME"], "bargein", "mcp.json")


def test_the_forms_that_people_have(around: dict[str, str]) -> None:
    write(
        own_file(around),
        {
            "files": {
                "command": "npx",
                "args": ["-y", "files", "${WHERE:-/tmp}"],
                "env": {"A": "b"},
            },
            "issues": {
                "type": "http",
                "url": "https://${HOST}/mcp",
                "headers": {"X-Key": "${KEY}"},
                "alwaysAllow": ["for another program"],
                "startup_timeout_sec": 5,
                "tool_timeout_sec": 7,
                "disabled_tools": ["rm"],
            },
            "off": {"command": "x", "enabled": False},
        },
    )
    config = loaded({**around, "HOST": "mcp.example.com", "KEY": "k"})
    assert config.mcp is not None
    files, issues = config.mcp.servers
    assert files.args == ["-y", "files", "/tmp"]
    assert issues.url == "https://mcp.example.com/mcp"
    assert issues.headers == {"X-Key": "k"}
    assert (issues.startup_timeout_s, issues.tool_timeout_s) == (5, 7)
    assert not issues.offers("rm")


def test_the_same_table_in_toml(around: dict[str, str]) -> None:
    path = own_file(around).with_name("config.toml")
    path.parent.mkdir(parents=True)
    path.write_text('[mcpServers.time]\ncommand = "uvx"\nargs = ["mcp-server-time"]\n')
    assert names(loaded(around)) == ["time"]


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ({"comand": "x"}, "did you mean command"),
        ({"command": "x", "args": "y"}, "args"),
        ({"type": "sse", "url": "https://x"}, "'sse' is not supported"),
        ({"url": "${NOT_SET_ANYWHERE}"}, "url"),
        ({}, "a command or a url"),
    ],
)
def test_a_mistake_names_the_file_and_the_server_and_leaves_the_others(
    spec: dict[str, object],
    says: str,
    around: dict[str, str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = write(own_file(around), {"wrong": spec, "good": {"command": "x"}})
    config = loaded(around)
    assert names(config) == ["good"]
    assert config.mcp is not None
    (mistake,) = config.mcp.mistakes
    assert says in mistake
    assert f"{path}: mcpServers.wrong" in mistake
    # It can be looked at and removed.
    assert run(["mcp", "list"]) == 0
    assert f"bargein: {mistake}" in capsys.readouterr().err
    assert run(["mcp", "remove", "wrong"]) == 0
    assert loaded(around).mcp.mistakes == ()  # type: ignore[union-attr]


def test_a_name_of_another_program_leaves_the_others(around: dict[str, str]) -> None:
    write(own_file(around), {"Figma Dev Mode": {"url": "http://x/mcp"}, "good": {"command": "x"}})
    config = loaded(around)
    assert names(config) == ["good"]
    assert config.mcp is not None
    assert "'Figma Dev Mode'" in config.mcp.mistakes[0]


def test_a_file_of_the_users_own_that_cannot_be_read(around: dict[str, str]) -> None:
    write(own_file(around), {}).write_text("{")
    with pytest.raises(UserError, match="is not JSON"):
        loaded(around)


def test_a_file_of_a_project_that_cannot_be_read_keeps_nobody_out(around: dict[str, str]) -> None:
    write(own_file(around), {"good": {"command": "x"}})
    Path(".mcp.json").write_text("// comment\n{}")
    config = loaded(around)
    assert names(config) == ["good"]
    assert config.mcp is not None
    assert ".mcp.json is not JSON" in config.mcp.mistakes[0]


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_server_whose_variable_is_not_set_is_listed_with_its_error(
    around: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    headers = {"X-Key": "${KEY_OF_MINE}"}
    issues = {"url": "https://${HOST:-example.com}/mcp", "headers": headers}
    write(own_file(around), {"issues": issues, "good": {"command": "x"}})
    config = loaded(around)
    assert names(config) == ["issues", "good"]
    assert config.mcp is not None
    issues_server = config.mcp.servers[0]
    async with house(issues_server, why_not=config.mcp.why_not) as home:
        await home.prepare()
        status = home.servers.status()[0]
        assert status.state == "failed"
        assert "the variable KEY_OF_MINE is not set; set it" in status.error
    config = loaded({**around, "KEY_OF_MINE": ""})
    assert config.mcp is not None
    assert config.mcp.why_not(config.mcp.servers[0]) == ""
    assert config.mcp.servers[0].headers == {"X-Key": ""}


def test_the_list_shows_variables_by_name(
    around: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("KEY_OF_MINE", "s3cret")
    write(own_file(around), {"search": {"command": "search", "args": ["--key=${KEY_OF_MINE}"]}})
    assert run(["mcp", "list"]) == 0
    shown = capsys.readouterr().out
    assert "search  search --key=${KEY_OF_MINE}" in shown
    assert "s3cret" not in shown


def test_a_projects_servers_wait_for_approval(around: dict[str, str]) -> None:
    script = Path("server.py")
    script.write_text("print('one')")
    write(
        Path(".mcp.json"),
        {"local": {"command": "python3", "args": ["server.py", "${SECRET:-}"]}},
    )
    config = loaded(around)
    assert names(config) == []
    (request,) = config.left_out
    shown = request.shown()
    assert "local: starts python3 server.py ${SECRET:-}" in shown
    assert "reads $SECRET from your environment" in shown
    assert "runs server.py, as it is now" in shown
    trust_file(around).judge(request, approved=True)
    config = loaded({**around, "SECRET": "s3cret"})
    assert names(config) == ["local"]
    assert config.mcp is not None
    (server,) = config.mcp.servers
    assert config.mcp.why_not(server) == ""
    # The agent can write to the script: it is looked at again when the server starts.
    script.write_text("print('two')")
    assert "has changed since you approved it" in config.mcp.why_not(server)
    assert names(loaded(around)) == []


@pytest.mark.parametrize(
    ("spec", "script"),
    [
        ({"command": "python3", "args": ["${SCRIPT:-./run.py}"]}, "run.py"),
        ({"command": "python3", "args": ["${WHERE}/run.py"]}, "scripts/run.py"),
        ({"command": "python3", "args": ["run.py"], "cwd": "scripts"}, "scripts/run.py"),
        ({"command": "sh", "args": ["-c", "python3 ./run.py 2>&1"]}, "run.py"),
        ({"command": "python3", "args": ["-m", "scripts.run"]}, "scripts/run.py"),
        ({"command": "python3", "args": ["-m", "scripts"]}, "scripts/__main__.py"),
        ({"command": "python3", "args": ["./scripts"]}, "scripts/__main__.py"),
        ({"command": "npx", "args": ["-y", "tool"]}, "node_modules/.bin/tool"),
        ({"command": "npm", "args": ["start"]}, "package.json"),
        ({"command": "tool", "env": {"PATH": "scripts:/usr/bin"}}, "scripts/tool"),
        ({"command": "node", "args": ["x"], "env": {"NODE_OPTIONS": "-r ./run.py"}}, "run.py"),
        ({"command": "uv", "args": ["run", "--project=scripts", "x"]}, "scripts/pyproject.toml"),
    ],
)
def test_scripts_that_a_server_runs_are_covered(
    spec: dict[str, object], script: str, around: dict[str, str]
) -> None:
    around["WHERE"] = "scripts"
    Path(script).parent.mkdir(parents=True, exist_ok=True)
    Path(script).write_text("one")
    write(Path(".mcp.json"), {"local": spec})
    (request,) = loaded(around).left_out
    assert f"runs {script}, as it is now" in request.shown()
    trust_file(around).judge(request, approved=True)
    config = loaded(around)
    assert names(config) == ["local"]
    Path(script).write_text("two")
    assert names(loaded(around)) == []
    assert config.mcp is not None
    assert "has changed" in config.mcp.why_not(config.mcp.servers[0])


def test_the_variable_of_a_token_is_shown_before_approval(around: dict[str, str]) -> None:
    spec = {"url": "https://stranger.example/mcp", "bearer_token_env_var": "OPENAI_API_KEY"}
    write(Path(".mcp.json"), {"theirs": spec})
    (request,) = loaded(around).left_out
    assert "reads $OPENAI_API_KEY from your environment" in request.shown()


def test_a_projects_server_whose_variable_is_not_set_is_asked_about(around: dict[str, str]) -> None:
    write(Path(".mcp.json"), {"theirs": {"command": "${NOT_SET_ANYWHERE}", "args": ["x"]}})
    config = loaded(around)
    assert config.mcp is not None
    assert config.mcp.mistakes == ()
    (request,) = config.left_out
    assert "reads $NOT_SET_ANYWHERE from your environment" in request.shown()


def test_the_users_server_counts_more(around: dict[str, str]) -> None:
    write(own_file(around), {"time": {"command": "mine"}})
    write(Path(".mcp.json"), {"time": {"command": "theirs"}})
    request = loaded(around).left_out[0]
    trust_file(around).judge(request, approved=True)
    config = loaded(around)
    assert config.mcp is not None
    assert [each.command for each in config.mcp.servers] == ["mine"]


def test_tables_of_a_project_in_toml_wait_too(around: dict[str, str]) -> None:
    Path("bargein.toml").write_text('[mcpServers.theirs]\ncommand = "x"\n')
    config = loaded(around)
    assert names(config) == []
    assert "theirs: starts x" in config.left_out[0].shown()


def test_the_command_adds_lists_tests_and_removes(
    around: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    bad = str(SERVERS / "bad.py")
    assert run(["mcp", "add", "mine", "--", sys.executable, "-I", "-S", bad, "plain"]) == 0
    assert oct(own_file(around).stat().st_mode)[-3:] == "600"
    assert run(["mcp", "add", "mine", "x"]) == 2
    assert "--replace" in capsys.readouterr().err
    assert run(["mcp", "add", "gone", "--url", "http://127.0.0.1:9/mcp"]) == 0
    assert run(["mcp", "list"]) == 0
    assert str(own_file(around)) in capsys.readouterr().out
    assert run(["mcp", "test", "mine"]) == 0
    shown = capsys.readouterr().out
    assert "mine  ready, bad plain, MCP 2025-06-18, 18 tools" in shown
    assert "mcp__mine__echo" in shown
    assert run(["mcp", "test"]) == 1
    assert "gone  failed: MCP server gone: it cannot be reached" in capsys.readouterr().out
    assert run(["mcp", "remove", "mine"]) == 0
    assert run(["mcp", "remove", "mine"]) == 2
    assert names(loaded(around)) == ["gone"]


def test_a_command_with_options_goes_behind_two_dashes(
    around: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        run(["mcp", "add", "time", "python3", "-m", "mcp_server_time"])
    said = capsys.readouterr().err
    assert "put -- before a command that has options" in said
    assert "bargein mcp add time -- python3 -m ..." in said
    assert run(["mcp", "add", "time", "--", "python3", "-m", "mcp_server_time"]) == 0


def test_the_list_says_what_waits_for_approval(
    around: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    write(Path(".mcp.json"), {"local": {"command": "x"}})
    assert run(["mcp", "list"]) == 0
    assert "1 of the MCP servers is left out until you approve them" in capsys.readouterr().err


def trusted_project(around: dict[str, str]) -> Config:
    """A project with a server that the user approved."""
    script = (SERVERS / "bad.py").read_text()
    Path("server.py").write_text(script)
    write(Path(".mcp.json"), {"local": {"command": sys.executable, "args": ["server.py"]}})
    trust_file(around).judge(loaded(around).left_out[0], approved=True)
    return loaded(around)


def change_script() -> None:
    Path("server.py").write_text("import sys; sys.exit()")


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_changed_script_is_not_started(around: dict[str, str]) -> None:
    config = trusted_project(around)
    assert config.mcp is not None
    folder = os.getcwd()
    async with house(*config.mcp.servers, folder=folder, why_not=config.mcp.why_not) as home:
        await home.prepare()
        assert "mcp__local__echo" in home.registry.names
        change_script()
        await home.call("mcp__local__die")
        result = await home.call("mcp__local__echo")
        assert "has changed since you approved it" in str(result.content)
