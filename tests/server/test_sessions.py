from pathlib import Path

import pytest

from bargein.models.script import Say, Wait
from tests.server.stage import serving

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_a_message_is_answered_and_its_turn_can_be_read(tmp_path: Path) -> None:
    async with serving([[Say("Hello.")]], tmp_path) as stage:
        session = await stage.new_session()
        sent = await stage.post(f"{session}/messages", {"text": "hi"})
        assert sent["disposition"] == "started"
        turn = await stage.get(f"{session}/turns/{sent['turn']}?wait=true")
        assert (turn["state"], turn["outcome"], turn["text"]) == ("settled", "completed", "Hello.")
        assert turn["messages"] == [sent["message"]]


async def test_an_interrupt_gives_the_receipt(tmp_path: Path) -> None:
    async with serving([[Say("One "), Wait("never")]], tmp_path) as stage:
        session = await stage.new_session()
        sent = await stage.post(f"{session}/messages", {"text": "count"})
        await stage.model.gate("never").reached()
        receipt = await stage.post(f"{session}/interrupt")
        assert (receipt["status"], receipt["target"]) == ("stopped", sent["turn"])
        assert receipt["by"] == "operator"
        again = await stage.post(f"{session}/interrupt", {"expected_turn_id": sent["turn"]})
        assert again["status"] == "too_late"
