"""What the tests of the local model share."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

import anyio
import psutil

from bargein.cancel import CancelSource, Token
from bargein.contracts.model import ModelRequest, Part, Text, TextPart, UserMessage
from bargein.models.local import LocalModel, LocalOptions, Notice, RuntimeSettings
from bargein.models.retry import RetryPolicy
from bargein.models.settings import ModelSettings
from bargein.models.watchdog import Timeouts
from bargein.process import Containment
from tests.models.local.files import FAKE_CHILD, FakeFile

# What a stop may take at most, with room for a machine on which much else runs.
STOP_BOUND_S = 20.0
QUICK = RetryPolicy(delay_first_s=0.01, delay_max_s=0.02)

T = TypeVar("T")


@asynccontextmanager
async def model_of(
    file: FakeFile,
    containment: Containment,
    notices: list[Notice],
    *,
    runtime: RuntimeSettings | None = None,
    timeouts: Timeouts | None = None,
) -> AsyncIterator[LocalModel]:
    """A model that the fake child runs; closed at the end."""
    model = LocalModel(
        ModelSettings(policy=QUICK, timeouts=timeouts or Timeouts()),
        path=str(file.path),
        options=LocalOptions(
            containment=containment,
            environment={"PATH": os.environ["PATH"], "SOME_API_KEY": "not for the child"},
            on_notice=notices.append,
            runtime=runtime or RuntimeSettings(),
            command=FAKE_CHILD,
        ),
    )
    try:
        yield model
    finally:
        await model.aclose()


def ask(words: str) -> ModelRequest:
    return ModelRequest(messages=(UserMessage((Text(words),)),))


async def parts_of(
    model: LocalModel, request: ModelRequest | str, token: Token | None = None
) -> list[Part]:
    if isinstance(request, str):
        request = ask(request)
    with CancelSource("a request") as source:
        async with model.open(request, token or source.token) as stream:
            return [part async for part in stream]


def said(parts: Sequence[Part]) -> str:
    return "".join(part.text for part in parts if isinstance(part, TextPart))


def is_alive(pid: int) -> bool:
    """One that has ended and is only not yet reaped is not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


async def until(condition: Callable[[], object], timeout_s: float = 30.0) -> None:
    """For what another process does, which no event here tells of."""
    with anyio.fail_after(timeout_s):
        while not condition():  # noqa: ASYNC110 - there is no event to wait for
            await anyio.sleep(0.005)


def of_kind(kind: type[T], notices: Sequence[object]) -> list[T]:
    return [notice for notice in notices if isinstance(notice, kind)]
