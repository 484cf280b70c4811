"""`bargein sessions` on data with a session that cannot be read."""

import sqlite3
from pathlib import Path

import anyio
import pytest

from bargein.cli.program import run
from bargein.models.script import Say
from bargein.models.scripted import ScriptedModel
from bargein.runtime.agent import Agent
from bargein.runtime.data_directory import SESSIONS_FILE
from bargein.runtime.engine import Engine


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "data"
    monkeypatch.setenv("BARGEIN_HOME", str(home))
    monkeypatch.chdir(tmp_path)

    async def talk() -> None:
        model = ScriptedModel([[Say("the answer")]] * 2)
        async with Engine(Agent(model=model, project_instructions=False), home=home) as engine:
            for name in ("fine", "spoilt"):
                await (await (await engine.session(name)).send("hello")).result()

    anyio.run(talk)
    return home


def spoil(home: Path, statement: str) -> None:
    connection = sqlite3.connect(home / SESSIONS_FILE)
    connection.execute("DROP TRIGGER IF EXISTS events_are_not_changed")
    connection.execute(f"{statement} (SELECT number FROM sessions WHERE id = 'spoilt')")
    connection.commit()
    connection.close()


@pytest.mark.parametrize("action", ["show", "export"])
def test_what_can_be_read_is_shown_and_the_rest_is_named(
    home: Path, action: str, capsys: pytest.CaptureFixture[str]
) -> None:
    spoil(home, "UPDATE events SET body = x'c1' WHERE seq > 3 AND session =")
    assert run(["sessions", action, "spoilt"]) == 1
    said = capsys.readouterr()
    assert "> hello" in said.out
    assert "event 4 of session 'spoilt' cannot be read" in said.err
    assert run(["sessions", action, "fine"]) == 0
    assert "the answer" in capsys.readouterr().out
    assert run(["sessions", "search", "answer"]) == 0
    assert capsys.readouterr().out.count("answer") == 2


def test_a_session_without_a_readable_state_is_listed_as_such(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spoil(home, "UPDATE sessions SET state = x'c1' WHERE number =")
    assert run(["sessions"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.endswith("(cannot be read)") for line in sorted(lines, key=len)] == [False, True]
    assert run(["sessions", "rm", "spoilt"]) == 0
    assert run(["sessions"]) == 0
    assert "spoilt" not in capsys.readouterr().out
