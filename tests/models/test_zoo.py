"""Everything a provider has been seen to do, in all three dialects, over a real connection."""

from __future__ import annotations

import asyncio

import pytest

from bargein.cancel import CancelSource
from bargein.contracts.model import CallPart, EndPart, Part, StopReason, Usage, UsagePart
from bargein.models.errors import (
    KeyRefused,
    ModelError,
    ModelNotFound,
    ModelTimeout,
    ModelUnavailable,
    ModelUnreachable,
    RateLimited,
    StreamBroken,
)
from bargein.models.watchdog import Timeouts
from bargein.testing.fault_answers import events_of
from bargein.testing.fault_server import FaultServer, make_tls, unused_port
from bargein.testing.fault_steps import Body, Drop, Gate, Hang, Head, Pause, Raw, Reply, Reset, Step
from bargein.testing.fault_zoo import ZOO, choose_by_path, refusal
from tests.models.harness import DIALECTS, HELLO, collect, endpoint, joined, one_try, text_of

pytestmark = pytest.mark.anyio

# Only for what would otherwise wait for minutes: a busy machine is slow, too.
TAIL = Timeouts(tail_s=0.3)
LIMITS = {
    "slow-loris": Timeouts(first_byte_s=0.3),
    "silent-before-headers": Timeouts(first_byte_s=0.3),
    "silent-after-headers": Timeouts(first_byte_s=0.3),
    "silent-mid-answer": Timeouts(between_chunks_s=0.3),
    "silent-in-error-body": Timeouts(error_body_s=0.3),
    "stall": Timeouts(first_byte_s=0.3),
    "gated": Timeouts(between_chunks_s=0.3),
}
HELLO_TEXT = "Hello, wörld"
USAGE = UsagePart(Usage(input_tokens=11, output_tokens=3))
CALLED = EndPart(StopReason.TOOL_CALLS)


async def answer(animal: str, dialect: str) -> list[Part]:
    async with FaultServer(choose_by_path) as server:
        target = endpoint(f"{server.url}/{animal}", dialect, timeouts=LIMITS.get(animal))
        try:
            return joined(await collect(one_try(target)))
        finally:
            assert len(server.visits) == 1
            await server.visits[0].gone.wait_async(30)


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("animal", ["ok", "usage-at-end", "missing-done", "gzip"])
async def test_what_is_an_answer_all_the_same(animal: str, dialect: str) -> None:
    parts = await answer(animal, dialect)
    assert text_of(parts) == HELLO_TEXT
    assert parts[-2:] == [USAGE, EndPart(StopReason.END)]


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_characters_in_pieces(dialect: str) -> None:
    assert text_of(await answer("split-utf8", dialect)) == "grüße, 世界 🌍"


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_calls(dialect: str) -> None:
    one = CallPart(0, "call_1", "read", '{"path":"ö"}')
    assert await answer("split-arguments", dialect) == [one, USAGE, CALLED]
    invalid = CallPart(0, "call_1", "read", '{"path": "a')
    assert await answer("invalid-arguments", dialect) == [invalid, USAGE, CALLED]
    first = CallPart(0, "call_1", "read", '{"path":"a"}')
    second = CallPart(1, "call_2", "read", '{"path":"b"}')
    assert await answer("parallel-calls", dialect) == [first, second, USAGE, CALLED]


FAILURES: dict[str, tuple[type[ModelError], bool, int | None, str]] = {
    "401": (KeyRefused, False, 401, "_API_KEY"),
    "404": (ModelNotFound, False, 404, "_BASE_URL"),
    "408": (ModelUnavailable, True, 408, "answered 408"),
    "429": (RateLimited, True, 429, "Rate limit reached"),
    "500": (ModelUnavailable, True, 500, "The server had an error"),
    "529": (ModelUnavailable, True, 529, "Overloaded"),
    "redirect": (ModelNotFound, False, 307, "http://127.0.0.1:9/elsewhere"),
    "drop": (StreamBroken, True, None, "in the middle"),
    "reset": (StreamBroken, True, None, "in the middle"),
    "drop-before-headers": (ModelUnavailable, True, None, "without a proper answer"),
    "slow-loris": (ModelTimeout, True, None, "took longer than 0.3 s"),
    "silent-before-headers": (ModelTimeout, True, None, "the first byte"),
    "silent-after-headers": (ModelTimeout, True, None, "the first byte"),
    "silent-mid-answer": (ModelTimeout, True, None, "the next piece"),
    "silent-in-error-body": (ModelUnavailable, True, 500, "answered 500"),
    "stall": (ModelTimeout, True, None, "the first byte"),
    "malformed-json": (StreamBroken, True, None, "cannot be read"),
    "wrong-content-type": (StreamBroken, False, 200, "text/html"),
    "endless-line": (StreamBroken, True, None, "16777216 bytes"),
    "gated": (ModelTimeout, True, None, "the next piece"),
}


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("animal", FAILURES)
async def test_failures(animal: str, dialect: str) -> None:
    kind, retryable, status, words = FAILURES[animal]
    with pytest.raises(kind) as caught:
        await answer(animal, dialect)
    error = caught.value
    assert (error.retryable, error.status) == (retryable, status)
    assert words in str(error)
    assert error.model == f"{dialect}:m"
    assert error.host.startswith("127.0.0.1:")
    assert error.model in str(error)
    assert error.host in str(error)


def test_every_animal_is_in_a_test() -> None:
    answered = {"ok", "usage-at-end", "missing-done", "gzip", "split-utf8", "paced"}
    called = {"split-arguments", "invalid-arguments", "parallel-calls"}
    assert set(ZOO) == answered | called | set(FAILURES)


async def test_retry_after_is_read() -> None:
    with pytest.raises(RateLimited) as caught:
        await answer("429", "openai")
    assert caught.value.retry_after_s == 1.0


async def fail(*reply: Step, dialect: str = "openai") -> ModelError:
    async with FaultServer([reply]) as server:
        with pytest.raises(ModelError) as caught:
            await collect(one_try(endpoint(server.url, dialect)))
        return caught.value


@pytest.mark.parametrize(
    ("headers", "retryable", "retry_after_s"),
    [
        ({"retry-after-ms": "1500", "Retry-After": "9"}, True, 1.5),
        ({"x-should-retry": "false"}, False, None),
        ({"Retry-After": "soon"}, True, None),
    ],
)
async def test_what_headers_say_about_a_retry(
    headers: dict[str, str], retryable: bool, retry_after_s: float | None
) -> None:
    error = await fail(*refusal(503, "busy", headers=headers))
    assert (error.retryable, error.retry_after_s) == (retryable, retry_after_s)


@pytest.mark.parametrize(
    ("status", "message", "kind"),
    [
        (400, "This model's maximum context length is 8 tokens", "ContextTooLong"),
        (400, "prompt is too long: 9 tokens > 8 maximum", "ContextTooLong"),
        (400, "the request exceeds the available context size", "ContextTooLong"),
        (413, "too large", "ContextTooLong"),
        (400, "messages: at least one is needed", "RequestRefused"),
        (422, "no such field", "RequestRefused"),
        (403, "not for you", "KeyRefused"),
        (402, "no money", "RateLimited"),
    ],
)
async def test_refusals_by_what_they_say(status: int, message: str, kind: str) -> None:
    error = await fail(*refusal(status, message))
    assert type(error).__name__ == kind
    assert not error.retryable
    assert message in str(error)


async def test_an_account_without_credit_is_not_asked_again() -> None:
    error = await fail(*refusal(429, "You exceeded your quota", kind="insufficient_quota"))
    assert isinstance(error, RateLimited)
    assert not error.retryable


async def test_a_providers_words_are_bounded_and_on_one_line() -> None:
    error = await fail(*refusal(400, "no\n\x1b[31m" + "very " * 5000))
    assert len(str(error)) < 800
    assert "\n" not in str(error)
    assert "\x1b" not in str(error)


async def test_an_error_body_without_end_is_read_only_so_far() -> None:
    error = await fail(Head(500), *[Body(b"x" * 65536)] * 64, Hang())
    assert error.status == 500


JSON = {"Content-Type": "application/json"}


async def test_an_error_that_comes_with_status_200() -> None:
    error = await fail(Head(200, JSON), Body(b'{"error": {"message": "no", "code": 429}}'))
    assert isinstance(error, RateLimited)


async def test_an_empty_answer_is_broken() -> None:
    assert isinstance(await fail(Head()), StreamBroken)
    assert isinstance(await fail(Head(204)), ModelError)


@pytest.mark.parametrize(
    "garbage",
    [
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"\x00" * 2000,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nhello",
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nConnection: close\r\n\r\nthis is not gzip",
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 100_000 + b"\r\n\r\n",
    ],
    ids=["ssh", "status", "zeros", "chunk", "gzip", "header"],
)
async def test_what_is_not_http_is_an_error_like_any_other(garbage: bytes) -> None:
    error = await fail(Raw(garbage), Drop())
    assert error.retryable


HALF_AN_EVENT = [Body(b'data: {"usage": {"prompt')]
NONSENSE = [Body(b"data: {{{\n\n")]


@pytest.mark.parametrize(
    "end",
    [[Drop()], [Reset()], [Hang()], HALF_AN_EVENT, [*HALF_AN_EVENT, Drop()], NONSENSE],
    ids=["drop", "reset", "hang", "half", "half and drop", "nonsense"],
)
async def test_once_all_was_said_nothing_can_fail(end: Reply) -> None:
    """The reason to stop has come; the end mark has not, and never will."""
    said = b'data: {"choices":[{"delta":{"content":"Hi"},"finish_reason":"stop"}]}\n\n'
    async with FaultServer([[Head(), Body(said), Gate("end"), *end]]) as server:
        parts = []
        model = one_try(endpoint(server.url, timeouts=TAIL))
        async with model.open(HELLO, CancelSource("request").token) as stream:
            async for part in stream:
                parts.append(part)
                server.gate("end").set()
    assert text_of(parts) == "Hi"
    assert parts[-1] == EndPart(StopReason.END)


async def test_once_all_was_said_comments_buy_no_more_time() -> None:
    said = b'data: {"choices":[{"delta":{"content":"Hi"},"finish_reason":"stop"}]}\n\n'
    steps: list[Step] = [Body(b": still here\n\n"), Pause(0.05)]
    async with FaultServer([[Head(), Body(said), *steps * 800]]) as server:
        async with asyncio.timeout(25):
            parts = await collect(one_try(endpoint(server.url, timeouts=TAIL)))
    assert parts[-1] == EndPart(StopReason.END)


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("missing", [1, 2])
async def test_the_last_event_may_lack_its_blank_line(dialect: str, missing: int) -> None:
    events = events_of(dialect)
    if dialect == "openai":
        events.pop()
    data = b"".join(events)[:-missing]
    async with FaultServer([[Head(), Body(data)]]) as server:
        parts = await collect(one_try(endpoint(server.url, dialect)))
    assert text_of(parts) == HELLO_TEXT
    assert isinstance(parts[-1], EndPart)


async def test_comments_keep_a_slow_answer_alive_but_not_for_ever() -> None:
    limits = Timeouts(first_byte_s=30, between_chunks_s=5.0, between_parts_s=6.0)
    ping: list[Step] = [Body(b": wait\n\n"), Pause(0.1)]
    waiting: list[Step] = [Head(), *ping * 10]
    answering = [*waiting, *ZOO["ok"]("openai")[1:]]
    endless = [*waiting, *waiting[1:] * 90]
    async with FaultServer([answering, endless]) as server:
        model = one_try(endpoint(server.url, timeouts=limits))
        assert text_of(await collect(model)) == HELLO_TEXT
        with pytest.raises(ModelTimeout):
            await collect(model)


async def test_nothing_listens() -> None:
    with pytest.raises(ModelUnreachable) as caught:
        await collect(one_try(endpoint(f"http://127.0.0.1:{unused_port()}")))
    assert caught.value.retryable
    assert "nothing listens at 127.0.0.1" in str(caught.value)


async def test_a_proxy_that_is_not_there_is_not_taken_for_the_provider() -> None:
    proxy = f"http://127.0.0.1:{unused_port()}"
    with pytest.raises(ModelUnreachable) as caught:
        await collect(one_try(endpoint("http://model.invalid", proxy=proxy)))
    assert "the proxy on the way to model.invalid" in str(caught.value)
    assert "HTTPS_PROXY" in str(caught.value)


async def test_a_name_that_is_not_there() -> None:
    with pytest.raises(ModelUnreachable) as caught:
        await collect(one_try(endpoint("http://nowhere.invalid")))
    assert "nowhere.invalid cannot be found" in str(caught.value)


async def test_a_certificate_that_is_not_trusted() -> None:
    server_tls, _ = make_tls()
    async with FaultServer([ZOO["ok"]("openai")], tls=server_tls) as server:
        with pytest.raises(ModelUnreachable) as caught:
            await collect(one_try(endpoint(server.url)))
    assert not caught.value.retryable
    assert "not trusted" in str(caught.value)


async def test_tls_spoken_to_a_server_that_has_none() -> None:
    async def answer_plainly(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(answer_plainly, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(ModelUnreachable) as caught:
            await collect(one_try(endpoint(f"https://127.0.0.1:{port}")))
    assert "no TLS connection" in str(caught.value)
    assert not caught.value.retryable
