"""An engine that is left because its caller was cancelled gives back everything all the same."""

from pathlib import Path

import anyio
import pytest

from bargein.models.script import load_script
from bargein.models.scripted import ScriptedModel
from bargein.runtime.agent import Agent
from bargein.runtime.data_directory import SESSIONS_FILE
from bargein.runtime.engine import Engine
from bargein.stores.sqlite import SqliteStore

SCRIPT = """
[[answers]]
steps = [{ do = "say", text = "done" }]
"""


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_its_store_is_closed_before_its_data_are_let_go(tmp_path: Path) -> None:
    (tmp_path / "script.toml").write_text(SCRIPT)
    home = tmp_path / "data"
    with anyio.CancelScope() as scope:
        agent = Agent(model=ScriptedModel(load_script(tmp_path / "script.toml")))
        async with Engine(agent, home=home) as engine:
            store = engine.core.store
            session = await engine.session("one")
            await (await session.send("go")).result()
            scope.cancel()
            await anyio.sleep_forever()
    assert isinstance(store, SqliteStore)
    # That it ends is the last thing a thread of the store says.
    assert [each._ended for each in (store._writer, store._reader, store._searcher)] == [True] * 3
    # Whoever closes the last connection moves the log into the file.
    assert [each.name for each in home.glob(f"{SESSIONS_FILE}*")] == [SESSIONS_FILE]
