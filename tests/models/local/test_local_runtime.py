"""The child's life: started, shared, watched, restarted, stopped. With a fake child, real processes."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import psutil
import pytest

from bargein.cancel import Cancelled, CancelSource, Cause, Token
from bargein.contracts.model import (
    EndPart,
    ModelRequest,
    Part,
    RetryingPart,
    Text,
    TextPart,
    UserMessage,
)
from bargein.models.local import (
    Died,
    LocalModel,
    LocalOptions,
    Notice,
    Reading,
    Ready,
    RuntimeFailed,
    RuntimeSettings,
    Stopped,
)
from bargein.models.retry import RetryPolicy
from bargein.models.settings import ModelSettings
from bargein.models.watchdog import Timeouts
from bargein.process import Containment
from tests.models.local.files import FAKE_CHILD, FakeFile, fake_file

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(30)]

QUICK = RetryPolicy(delay_first_s=0.01, delay_max_s=0.02)


@asynccontextmanager
async def model_of(
    file: FakeFile,
    containment: Containment,
    notices: list[Notice],
    *,
    runtime: RuntimeSettings | None = None,
    timeouts: Timeouts | None = None,
) -> AsyncIterator[LocalModel]:
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


async def parts_of(model: LocalModel, words: str, token: Token | None = None) -> list[Part]:
    with CancelSource("a request") as source:
        async with model.open(ask(words), token or source.token) as stream:
            return [part async for part in stream]


def said(parts: list[Part]) -> str:
    return "".join(part.text for part in parts if isinstance(part, TextPart))


async def until(condition: Callable[[], object], timeout_s: float = 10.0) -> None:
    """For what another process does; there is no event of it here."""
    with anyio.fail_after(timeout_s):
        while not condition():
            await anyio.sleep(0.005)


def of_kind[T](kind: type[T], notices: list[Notice]) -> list[T]:
    return [notice for notice in notices if isinstance(notice, kind)]
