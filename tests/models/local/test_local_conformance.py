"""The conformance tests of all models, for a local one with a scripted child."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from bargein.models.local import LocalModel, LocalOptions
from bargein.models.settings import ModelSettings
from bargein.process import Containment
from bargein.testing.fault_answers import HELLO as HELLO_PARTS
from bargein.testing.fault_answers import events_of
from bargein.testing.fault_server import FaultServer
from bargein.testing.fault_steps import Body, Drop, Gate, Hang, Head, Reply
from bargein.testing.fault_zoo import refusal, whole
from tests.models.local.files import FAKE_CHILD, fake_file
from tests.models.test_conformance import (
    QUICK,
    Maker,
    Stage,
    test_a_cancel_comes_out_as_itself_and_keeps_what_was_said,
    test_a_fault_is_told_and_tried_again,
    test_a_fault_surfaces_when_retries_end,
    test_a_refusal_is_not_tried_again,
    test_a_whole_answer,
    test_leaving_early_is_no_error,
    test_two_requests_at_once_do_not_know_each_other,
    test_what_is_cancelled_beforehand_asks_nothing,
)

__all__ = [
    "test_a_cancel_comes_out_as_itself_and_keeps_what_was_said",
    "test_a_fault_is_told_and_tried_again",
    "test_a_fault_surfaces_when_retries_end",
    "test_a_refusal_is_not_tried_again",
    "test_a_whole_answer",
    "test_leaving_early_is_no_error",
    "test_two_requests_at_once_do_not_know_each_other",
    "test_what_is_cancelled_beforehand_asks_nothing",
]

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(90)]


@pytest.fixture
def make(containment: Containment, tmp_path: Path) -> Maker:
    @asynccontextmanager
    async def made(play: str) -> AsyncIterator[Stage]:
        begin = Body(b"".join(events_of("openai", HELLO_PARTS[:1])))
        replies: dict[str, list[Reply]] = {
            "whole": [whole("openai")],
            "held": [[Head(), begin, Gate("never"), Hang()]],
            "fails once": [[Head(), begin, Drop()], whole("openai")],
            "fails": [refusal(503, "busy")],
            "refused": [refusal(401, "no")],
        }
        folder = tmp_path / play
        folder.mkdir()
        async with FaultServer(replies[play]) as server:
            file = fake_file(folder, address=server.url)
            options = LocalOptions(containment=containment, command=FAKE_CHILD)
            model = LocalModel(ModelSettings(policy=QUICK), path=str(file.path), options=options)
            try:
                yield Stage(model, lambda: len(server.visits))
            finally:
                await model.aclose()

    return made
