"""An engine that is left because its caller was cancelled gives back everything all the same."""

import threading
from pathlib import Path

import anyio
import pytest

from bargein.cli.wiring import DATABASE, Agent, Engine
from bargein.models.script import load_script
from bargein.models.scripted import ScriptedModel

SCRIPT = """
[[answers]]
steps = [{ do = "say", text = "done" }]
"""


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_its_store_is_closed_before_its_data_are_let_go(tmp_path: Path) -> None:
    (tmp_path / "script.toml").write_text(SCRIPT)
    home = tmp_path / "data"
    before = set(threading.enumerate())
    with anyio.CancelScope() as scope:
        agent = Agent(model=ScriptedModel(load_script(tmp_path / "script.toml")))
        async with Engine(agent, home=home) as engine:
            session = await engine.session("one")
            await (await session.send("go")).result()
            scope.cancel()
            await anyio.sleep_forever()
    store = {each.name for each in set(threading.enumerate()) - before if "store" in each.name}
    assert store == set()
    # Whoever closes the last connection moves the log into the file.
    assert [each.name for each in home.glob(f"{DATABASE}*")] == [DATABASE]
