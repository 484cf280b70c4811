"""What is Matrix's own: encrypted rooms and threads."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import aiohttp
import anyio
import pytest

from bargein.channels import words
from bargein.channels.contract import ChatAddress
from bargein.channels.matrix import MatrixChannel
from bargein.models.script import Say
from bargein.testing.channel_conformance import ChannelScene
from tests.channels.matrix_platform import MatrixPerson, MatrixPlatform, matrix_platform

pytestmark = [
    pytest.mark.needs("synapse"),
    pytest.mark.timeout(120),
    pytest.mark.anyio,
    pytest.mark.parametrize("anyio_backend", ["asyncio"]),
]


@pytest.fixture(scope="module")
def synapse(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    from tests.channels.synapse import homeserver

    with homeserver(tmp_path_factory.mktemp("synapse")) as address:
        yield address


class EncryptedPlatform(MatrixPlatform):
    """The bot knows its device, so that it can read encrypted rooms."""

    device = ""

    def open_channel(self) -> MatrixChannel:  # type: ignore[override]
        return MatrixChannel(
            self.name,
            homeserver=self.address,
            user=self.bot.id,
            token=self.bot.token,
            device=self.device,
            folder=self.folder / "bot",
            per_s="200",
        )


async def test_an_encrypted_room(synapse: str, tmp_path: Path) -> None:
    import nio  # type: ignore[import-untyped]

    async with aiohttp.ClientSession() as http, anyio.create_task_group() as tasks:
        platform = EncryptedPlatform(synapse, tmp_path)
        await platform.begin(http, tasks)
        platform.device = (await platform.bot.call("GET", "account/whoami"))["device_id"]
        alice = platform.people[platform.alice.id]
        device = (await alice.call("GET", "account/whoami"))["device_id"]
        state = {"algorithm": "m.megolm.v1.aes-sha2"}
        room = platform.private.id
        await alice.call("PUT", f"rooms/{room}/state/m.room.encryption", state)
        (tmp_path / "alice").mkdir()
        client = nio.AsyncClient(synapse, alice.id, device, str(tmp_path / "alice"))
        client.restore_login(alice.id, device, alice.token)
        heard: list[str] = []
        client.add_event_callback(
            lambda room, event: heard.append(event.body) if event.decrypted else None,
            nio.RoomMessageText,
        )
        scene = ChannelScene(platform)
        await scene.pair()
        async with scene.program([[Say("Hello.")]]):
            with anyio.fail_after(40):
                # The bot has to have published its keys before Alice can write to it.
                while not await _has_keys(alice, platform):  # noqa: ASYNC110
                    await anyio.sleep(0.1)
                await client.sync(full_state=True)
                await client.keys_upload()
                content = {"msgtype": "m.text", "body": "A secret"}
                await client.room_send(
                    room, "m.room.message", content, ignore_unverified_devices=True
                )
                while "Hello." not in heard:
                    await client.sync(timeout=1000)
            assert "A secret" in str(scene.model.requests[0].messages)
        await client.close()
        seen = await alice.call("GET", f"rooms/{room}/messages", dir="b", limit="50")
        assert "Hello." not in str(seen), "the homeserver sees nothing of it"
        tasks.cancel_scope.cancel()


async def _has_keys(alice: MatrixPerson, platform: MatrixPlatform) -> bool:
    asked: dict[str, object] = {"device_keys": {platform.bot.id: []}}
    found = await alice.call("POST", "keys/query", asked)
    return bool(found["device_keys"].get(platform.bot.id))


async def test_a_thread_is_a_session(synapse: str, tmp_path: Path) -> None:
    async with matrix_platform(synapse, tmp_path) as platform:
        scene = ChannelScene(platform)
        await scene.pair()
        (thread,) = (await platform.chats(1))[:1]
        async with scene.program([[Say("Hello.")]]):
            await platform.say(thread, platform.alice, "Hi")
            await scene.sees("Hello.", thread)
            assert await scene.sessions() == [scene.session_of(thread)]
            assert thread == ChatAddress(platform.private.id, thread=thread.thread)


async def test_edits_and_reactions_of_known_messages_ask_the_homeserver_nothing(
    synapse: str, tmp_path: Path
) -> None:
    """Reading would wait for each answer, and a stop behind it too."""
    async with matrix_platform(synapse, tmp_path) as platform:
        scene = ChannelScene(platform)
        await scene.pair()
        async with scene.program([[Say("Hello.")]], repeat=True):
            said = await platform.say(platform.private, platform.alice, "Hi")
            (answer,) = await scene.sees("Hello.")
            await scene.quiet()
            await platform.edit(platform.private, platform.alice, said, "Hi there")
            await platform.press(platform.private, platform.alice, answer.id, "👍")
            await scene.sees("Hello.", count=2)
            await scene.sees(words.NOT_OPEN)
            await scene.quiet()
            assert any("/send/" in path for path in platform.asked)
            assert not [path for path in platform.asked if "/event/" in path]
