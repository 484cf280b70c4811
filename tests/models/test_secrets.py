"""Keys are in the request's header, and nowhere else."""

from __future__ import annotations

import asyncio
import logging
import pickle
import traceback
from collections.abc import Iterator

import pytest

from bargein.cancel import Cancelled, CancelSource, Cause
from bargein.models.errors import ModelError, Secret, excerpt
from bargein.models.http_endpoint import HttpEndpoint
from bargein.models.naming import resolve_model
from bargein.models.settings import ModelSettings, settings_from_environment
from bargein.models.watchdog import Timeouts
from bargein.testing.fault_server import FaultServer, unused_port
from bargein.testing.fault_steps import Body, Drop, Head, Raw, Reply
from bargein.testing.fault_zoo import ZOO, choose_by_path, refusal
from tests.models.harness import DIALECTS, KEY, collect, endpoint, one_try

pytestmark = pytest.mark.anyio

SHORT = Timeouts(first_byte_s=0.2, between_chunks_s=0.2, tail_s=0.2, error_body_s=0.2)
PASSWORD = "hunter2-hunter2"


def family(error: BaseException | None) -> Iterator[BaseException]:
    """An error and everything it drags along."""
    while error is not None:
        yield error
        yield from family(error.__context__ if error.__cause__ is None else None)
        error = error.__cause__


def assert_clean(error: BaseException, *secrets: str) -> None:
    for one in family(error):
        told = [
            str(one),
            repr(one),
            repr(one.args),
            repr(vars(one)),
            *getattr(one, "__notes__", ()),
        ]
        told += traceback.format_exception(one)
        # What a debugger or a crash reporter would show of our own frames.
        frames = traceback.TracebackException.from_exception(one, capture_locals=True)
        told += [repr(frame.locals) for frame in frames.stack if "bargein/models" in frame.filename]
        for text in told:
            for secret in secrets:
                assert secret not in text, type(one)


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("animal", sorted(set(ZOO) - {"paced", "endless-line"}))
async def test_no_failure_shows_the_key(
    animal: str, dialect: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with FaultServer(choose_by_path) as server:
        target = endpoint(f"{server.url}/{animal}", dialect, timeouts=SHORT)
        assert KEY not in repr(target)
        assert KEY not in repr(one_try(target))
        # Once, unless the machine was too busy to let even the request out in so short a time.
        while not server.requests:
            try:
                await collect(one_try(target))
            except ModelError as error:
                assert_clean(error, KEY)
                assert_clean(pickle.loads(pickle.dumps(error)), KEY)
        assert KEY in repr(server.requests[0].headers), "and yet it was sent"
    assert KEY not in caplog.text


ECHOES: dict[str, Reply] = {
    "message": refusal(401, f"Incorrect API key provided: {KEY}"),
    "plain text": [Head(500), Body(f"bad key {KEY}".encode())],
    "redirect": [Head(302, {"Location": f"http://127.0.0.1:9/{KEY}?key={KEY}"})],
    "content type": [Head(200, {"Content-Type": f"text/{KEY}"}), Body(b"x")],
    "page": [Head(200, {"Content-Type": "text/html"}), Body(f"<p>{KEY}</p>".encode())],
    "stream": [Head(), Body(b'data: {"error": {"message": "' + KEY.encode() + b'"}}\n\n')],
    "malformed": [Head(), Body(b"data: {" + KEY.encode() + b"\n\n")],
    "not http": [Raw(f"{KEY} {KEY}\r\n\r\n".encode()), Drop()],
}


@pytest.mark.parametrize("echo", ECHOES)
async def test_a_server_that_echoes_the_key_is_not_repeated(echo: str) -> None:
    async with FaultServer([ECHOES[echo]]) as server:
        with pytest.raises(ModelError) as caught:
            await collect(one_try(endpoint(server.url)))
    assert_clean(caught.value, KEY)


async def test_a_cancel_carries_no_key() -> None:
    async with FaultServer(choose_by_path) as server:
        source = CancelSource("request")
        target = endpoint(f"{server.url}/silent-before-headers")
        task = asyncio.create_task(collect(one_try(target), source.token))
        await (await server.visit(0)).requested.wait_async()
        source.cancel(Cause.USER_STOP)
        with pytest.raises(Cancelled) as caught:
            await task
    assert_clean(caught.value, KEY)


async def test_a_password_in_the_address_is_not_shown() -> None:
    port = unused_port()
    for url in (f"http://me:{PASSWORD}@127.0.0.1:{port}", f"http://me:{PASSWORD}@nowhere.invalid"):
        settings = ModelSettings(openai_base_url=f"{url}/v1")
        model = resolve_model("openai:x", settings)
        with pytest.raises(ModelError) as caught:
            await collect(one_try(_http(model.endpoints[0])))
        assert_clean(caught.value, PASSWORD)
        assert PASSWORD not in repr(model.endpoints[0])
        assert PASSWORD not in repr(settings)


async def test_a_password_of_a_proxy_is_not_shown() -> None:
    proxy = f"http://me:{PASSWORD}@127.0.0.1:{unused_port()}"
    target = endpoint("http://model.invalid", proxy=proxy)
    with pytest.raises(ModelError) as caught:
        await collect(one_try(target))
    assert_clean(caught.value, PASSWORD, KEY)
    assert PASSWORD not in repr(target)


def _http(target: object) -> HttpEndpoint:
    assert isinstance(target, HttpEndpoint)
    return target


def test_settings_may_be_shown() -> None:
    settings = settings_from_environment(
        {"OPENAI_API_KEY": KEY, "ANTHROPIC_API_KEY": KEY, "HTTPS_PROXY": f"http://u:{PASSWORD}@x"}
    )
    assert KEY not in repr(settings)
    assert PASSWORD not in repr(settings)


def test_a_secret_gives_itself_away_to_nobody_but_the_header() -> None:
    secret = Secret(KEY)
    assert KEY not in f"{secret} {secret!r} {[secret]}"
    assert secret.reveal() == KEY
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(secret)


def test_an_excerpt_cut_through_the_key_shows_no_part_that_matters() -> None:
    text = "x" * 490 + KEY
    assert KEY[:8] not in excerpt(text, Secret(KEY))
