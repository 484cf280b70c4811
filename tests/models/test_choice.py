"""Which model is chosen if none is named; with real servers on loopback."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from urllib.parse import urlsplit

import anyio
import pytest

from bargein.cancel import Cancelled, CancelSource, Cause
from bargein.errors import UserError
from bargein.models.choice import Candidate, choose_model, choose_name, find_server
from bargein.models.errors import Secret
from bargein.models.settings import ModelSettings
from bargein.testing.fault_server import FaultServer
from bargein.testing.fault_steps import Body, Hang, Head, Reply
from tests.models.harness import KEY, open_sockets, until

pytestmark = pytest.mark.anyio

JSON = {"Content-Type": "application/json"}


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever answers does so in time, also on a machine that is busy for a moment."""
    defaults = find_server.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "timeout_s", 20.0)


@pytest.fixture
def nobody() -> Iterator[Candidate]:
    """A port at which nobody listens, and which nobody else is given meanwhile."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield Candidate("nobody", f"http://127.0.0.1:{bound.getsockname()[1]}/v1")


def models(*names: str) -> Reply:
    listed = ",".join(f'{{"id":"{name}","object":"model"}}' for name in names)
    return [Head(200, JSON), Body(f'{{"object":"list","data":[{listed}]}}'.encode())]


def at(server: FaultServer, name: str = "server") -> Candidate:
    return Candidate(name, f"{server.url}/v1")


def token() -> CancelSource:
    return CancelSource("choice")


async def test_what_was_named_is_taken() -> None:
    settings = ModelSettings(model="openai:x", openai_key=Secret("k"))
    model, choice = await choose_model(settings, token().token)
    assert (model.name, choice.name) == ("openai:x", "openai:x")


async def test_a_key_decides() -> None:
    anthropic = await choose_name(ModelSettings(anthropic_key=Secret("k")), token().token)
    assert anthropic.name.startswith("anthropic:")
    assert "ANTHROPIC_API_KEY" in anthropic.why
    openai = await choose_name(ModelSettings(openai_key=Secret("k")), token().token)
    assert openai.name.startswith("openai:")


async def test_a_server_on_this_machine_is_found(nobody: Candidate) -> None:
    async with FaultServer([models("nomic-embed-text", "llama3.2")]) as server:
        candidates = [nobody, at(server, "Ollama")]
        choice = await choose_name(ModelSettings(), token().token, candidates=candidates)
        assert choice.name == f"openai:llama3.2@{server.url}/v1"
        assert "Ollama" in choice.why
        assert server.requests[0].path == "/v1/models"


async def test_a_list_that_comes_in_pieces_is_read_to_its_end() -> None:
    names = ["embed-" + "x" * 1000 for _ in range(300)]
    async with FaultServer([models(*names, "last")]) as server:
        assert await find_server([at(server)], token().token) == (at(server), "last")


async def test_the_first_of_those_that_answer_is_taken() -> None:
    slow, fast = FaultServer([models("one")]), FaultServer([models("two")])
    async with slow, fast:
        found = await find_server([at(slow, "slow"), at(fast, "fast")], token().token)
        assert found == (at(slow, "slow"), "one")


@pytest.mark.parametrize(
    "reply",
    [
        [Head(404)],
        [Head(200, {"Content-Type": "text/html"}), Body(b"<html>")],
        models(),
        models("text-embedding-3"),
        [Head(200, JSON), Body(b'{"data": null}')],
        [Head(200, JSON), Body(b"[1]")],
        [Head(307, {"Location": "http://127.0.0.1:9/"})],
    ],
    ids=["404", "page", "empty", "embedding", "null", "list", "redirect"],
)
async def test_what_is_no_model_server_is_passed_over(reply: Reply) -> None:
    async with FaultServer([reply]) as server:
        choice = await choose_name(ModelSettings(), token().token, candidates=[at(server)])
        assert choice.name == "local"


async def test_a_server_that_says_nothing_is_not_waited_for() -> None:
    async with FaultServer([[Hang()]]) as silent, FaultServer([models("here")]) as server:
        with anyio.fail_after(40):
            found = await find_server([at(silent), at(server)], token().token, timeout_s=3.0)
        assert found == (at(server), "here")


async def test_a_cancel_ends_the_search_and_leaves_nothing() -> None:
    async with FaultServer([[Hang()]]) as silent:
        sockets = open_sockets()
        source = token()
        search = asyncio.create_task(find_server([at(silent)], source.token, timeout_s=60))
        visit = await silent.visit(0)
        source.cancel(Cause.USER_STOP)
        with pytest.raises(Cancelled) as caught:
            await search
        assert caught.value.token is source.token
        await visit.gone.wait_async()
        await until(lambda: open_sockets() <= sockets, "no socket is left")


async def test_a_server_that_was_set_is_asked_what_it_has() -> None:
    async with FaultServer([models("mine")]) as server:
        settings = ModelSettings(openai_base_url=f"{server.url}/v1", openai_key=Secret(KEY))
        choice = await choose_name(settings, token().token, candidates=[])
        assert choice.name == "openai:mine"
        assert server.requests[0].headers["authorization"] == f"Bearer {KEY}"


async def test_without_anything_it_is_the_embedded_one(nobody: Candidate) -> None:
    choice = await choose_name(ModelSettings(), token().token, candidates=[nobody])
    assert choice.name == "local"


async def test_a_server_that_was_set_and_offers_nothing_is_told_of(nobody: Candidate) -> None:
    settings = ModelSettings(openai_base_url=nobody.base_url)
    host = urlsplit(nobody.base_url).netloc
    choice = await choose_name(settings, token().token, candidates=[nobody])
    assert choice.name == "local"
    assert choice.why.startswith(f"OPENAI_BASE_URL is set, but {host} offers no model; no key")
    async with FaultServer([models("found")]) as server:
        there = Candidate("Ollama", f"{server.url}/v1")
        choice = await choose_name(settings, token().token, candidates=[there])
        assert choice.why.endswith(f"but {host} offers no model; Ollama runs on this machine")


async def test_an_address_that_is_none_is_not_passed_over_in_silence(nobody: Candidate) -> None:
    with pytest.raises(UserError, match="OPENAI_BASE_URL is not the address of an API"):
        await choose_name(ModelSettings(openai_base_url="foo"), token().token, candidates=[nobody])
