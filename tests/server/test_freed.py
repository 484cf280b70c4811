"""What a request was made of goes with it: nothing of it is left for Python's collector to find,
whose search holds everybody up for as long as there are sessions to look through."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio.lowlevel
import pytest

from bargein.models.script import Say
from tests.server.stage import START_TOKEN, Stage, serving

pytestmark = pytest.mark.anyio

TIMES = 5

# A method, a path under the session, a body, a token, and the status of the answer.
CASES = {
    "a message": ("POST", "/messages", {"text": "x", "mode": "queue"}, START_TOKEN, 202),
    "a look": ("GET", "", None, START_TOKEN, 200),
    "nothing running": ("POST", "/interrupt", {}, START_TOKEN, 200),
    "nobody": ("GET", "", None, "wrong", 401),
    "no such session": ("POST", "-none/messages", {"text": "x"}, START_TOKEN, 404),
    "no such path": ("GET", "/nothing/here", None, START_TOKEN, 404),
    "no such method": ("PUT", "/messages", {}, START_TOKEN, 405),
    "a wrong field": ("POST", "/messages", {"texd": "x"}, START_TOKEN, 400),
    "a wrong mode": ("POST", "/messages", {"text": "x", "mode": "shout"}, START_TOKEN, 400),
    "no JSON": ("POST", "/messages", b"{", START_TOKEN, 400),
    "a wrong parameter": ("GET", "/inbox?after=1", None, START_TOKEN, 400),
}


@contextmanager
def only_by_the_collector() -> Iterator[list[object]]:
    """What nothing else has freed when this is left."""
    found: list[object] = []
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        yield found
        gc.collect()
        found.extend(gc.garbage)
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


@pytest.mark.parametrize("name", CASES)
async def test_a_request_is_freed_without_the_collector(tmp_path: Path, name: str) -> None:
    method, path, body, token, expected = CASES[name]
    async with serving([[Say("ok")]] * (TIMES + 1), tmp_path) as stage:
        session = await stage.new_session()
        with only_by_the_collector() as found:
            for _ in range(TIMES):
                status, _ = await stage.ask(method, session + path, body, token=token)
                assert status == expected
            await _let_it_go(stage)
        left = {type(each).__qualname__ for each in found if _is_of_the_server(each)}
        assert not left


def _is_of_the_server(each: object) -> bool:
    return type(each).__module__.startswith(("bargein.server.", "starlette.", "uvicorn."))


async def _let_it_go(stage: Stage) -> None:
    """uvicorn's task of the last request ends after its answer."""
    while stage.server.server_state.tasks:
        await anyio.lowlevel.checkpoint()
