"""The examples of Bargein inside an app of one's own: they serve, and a stop stops."""

from __future__ import annotations

import runpy
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from bargein.runtime.engine import Engine
from bargein.session.state import Phase

EXAMPLES = Path(__file__).parents[2] / "examples"
SCRIPT = """
repeat = true
[[answers]]
when = "million"
steps = [{ do = "say", text = "one " }, { do = "pause", seconds = 600 }]
[[answers]]
steps = [{ do = "say", text = "An old silent pond" }]
"""


@pytest.fixture(autouse=True)
def surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "script.toml").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BARGEIN_MODEL", f"scripted:{tmp_path / 'script.toml'}")
    monkeypatch.setenv("BARGEIN_HOME", str(tmp_path / "home"))


def load(name: str) -> dict[str, Any]:
    return runpy.run_path(str(EXAMPLES / f"{name}.py"))


@pytest.fixture
def own_routes() -> Iterator[tuple[Starlette, TestClient]]:
    app: Starlette = load("own_routes")["app"]
    with TestClient(app) as client:
        yield app, client


def test_an_answer_streams_from_a_route_of_the_app(
    own_routes: tuple[Starlette, TestClient],
) -> None:
    _, client = own_routes
    answer = client.post("/chat/alice", content="a haiku, please")
    assert answer.text == "An old silent pond\n[completed]\n"


def test_a_route_of_the_app_stops_the_turn(own_routes: tuple[Starlette, TestClient]) -> None:
    app, client = own_routes
    answers = []

    def ask() -> None:
        answers.append(client.post("/chat/alice", content="Count to a million").text)

    asking = threading.Thread(target=ask)
    asking.start()
    engine: Engine = app.state.engine
    while (state := engine.state("alice")) is None or state.phase is Phase.IDLE:
        asking.join(0.005)
        assert asking.is_alive(), "it ended before it was stopped"
    stopped = client.post("/chat/alice/stop").json()
    asking.join(30)
    assert stopped["status"] == "stopped"
    assert answers[0].endswith("[stopped]\n")


def test_the_gateway_is_mounted_beside_the_apps_routes() -> None:
    example = load("gateway_in_app")
    headers = {"authorization": f"Bearer {example['TOKEN']}"}
    with TestClient(example["app"], base_url="http://localhost:8000") as client:
        assert client.get("/about").text == "a route of your own"
        assert client.get("/healthz").json() == {"status": "ok"}
        assert "<html" in client.get("/").text
        assert client.get("/v1/sessions").status_code == 401
        made = client.post("/v1/sessions", json={}, headers=headers).json()
        path = f"/v1/sessions/{made['session']['id']}"
        sent = client.post(f"{path}/messages", json={"text": "a haiku"}, headers=headers).json()
        turn = client.get(f"{path}/turns/{sent['turn']}?wait=true", headers=headers).json()
        assert turn["text"] == "An old silent pond"
