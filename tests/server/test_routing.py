"""Every path leads to its own operation, whatever the ids in it look like."""

import logging
from pathlib import Path

import pytest

from bargein.server.app import OPERATIONS
from tests.server.stage import serving

pytestmark = pytest.mark.anyio

IDS = {
    "session": "s1",
    "call": "c1",
    "message": "m1",
    "turn": "t1",
    "question": "q1",
    "number": "0",
    "grant": "g1",
    "guest": "sam",
    "prompt": "mcp__git__review",
    "token": "a1b2c3",
}
WITH_SLASHES = IDS | {"session": "s1/c2.1/c3.1", "call": "child/c1"}

# Ids that read like the end of another path.
ODD = {
    ("GET", "/v1/sessions/messages"): "get_session",
    ("GET", "/v1/sessions/s1/turns/inbox"): "get_turn",
    ("GET", "/v1/sessions/inbox/transcript"): "get_transcript",
    ("POST", "/v1/sessions/s1/calls/pause/interrupt"): "interrupt_call",
    ("DELETE", "/v1/sessions/s1/inbox/interrupt"): "withdraw_message",
}
PATHS = {
    (each.method, f"/v1{each.path.format(**ids)}"): each.name
    for ids in (IDS, WITH_SLASHES)
    for each in OPERATIONS
} | ODD


async def test_each_path_is_that_of_its_operation(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "bargein.server")
    async with serving([], tmp_path) as stage:
        for (method, path), name in PATHS.items():
            caplog.clear()
            # Who is not known is refused by the operation itself, which is logged by its name.
            status, _ = await stage.ask(method, path, token="wrong")
            assert status == 401
            assert caplog.messages == [name], path


async def test_what_there_is_not_is_told_with_what_there_is(tmp_path: Path) -> None:
    async with serving([], tmp_path) as stage:
        session = await stage.new_session()
        status, answer = await stage.ask("PUT", f"{session}/inbox/m1")
        assert (status, answer["code"]) == (405, "method_not_allowed")
        assert "DELETE" in answer["detail"]
        assert "PATCH" in answer["detail"]
        for path in ("/v1/messages", "/v1/sessions/", "/v1", "/v1/sessions//messages", "/inbox"):
            status, answer = await stage.ask("POST", path)
            assert (status, answer["code"]) == (404, "not_found"), path
