"""The page's reducer, in JavaScript, shows the same as the Python picture, after every event."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

import bargein.server
from bargein.view import Picture
from tests.interrupt.causes import CAUSES
from tests.interrupt.phases import PHASES, Phase
from tests.interrupt.stage import Hold
from tests.interrupt.test_rows import row
from tests.programs import node
from tests.view.projection import project
from tests.view.streams import SCENES, Recorder, Stream, encoded, simulated

PAGE = Path(bargein.server.__file__).parent / "page" / "js"
STATES = Path(__file__).with_name("page_states.mjs")

BY_NAME = {cause.name: cause for cause in CAUSES}
STOPS = ["interrupt", "message, interrupt", "message, rollback", "engine closes"]
SEEDS = [range(first, first + 5) for first in range(0, 40, 5)]


def check(streams: dict[str, Stream], *, every: int = 1) -> None:
    """Compares both states after every so many events, and after the last."""
    told = json.dumps([encoded(stream) for stream in streams.values()])
    ran = subprocess.run(
        [node(), str(STATES), PAGE.as_uri(), str(every)],
        input=told,
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
    )
    assert ran.returncode == 0, ran.stderr
    for (name, stream), states in zip(streams.items(), json.loads(ran.stdout), strict=True):
        picture = Picture(name)
        shown = iter(states)
        for place, event in enumerate(stream):
            picture.apply(event)
            if place % every == 0 or place == len(stream) - 1:
                compare(name, stream, place, picture, next(shown))


def compare(
    name: str, stream: Stream, place: int, picture: Picture, page: dict[str, object]
) -> None:
    ours = json.loads(json.dumps(project(picture)))
    for key, value in ours.items():
        if value != page[key]:
            last = [repr(each)[:300] for each in stream[max(0, place - 5) : place + 1]]
            where = "\n".join([f"{name}, after event {place}:", *last])
            raise AssertionError(f"{where}\n{key}:\npython {value}\npage   {page[key]}")


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("scene", SCENES)
async def test_a_session_in_which_much_happens(scene: str) -> None:
    streams = await SCENES[scene]()
    assert sum(map(len, streams.values())) > 50
    check(streams)


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("stop", STOPS)
@pytest.mark.parametrize("phase", PHASES, ids=lambda phase: phase.name)
async def test_a_stop_in_every_phase(phase: Phase, stop: str) -> None:
    recorder, hold = Recorder(), Hold()
    try:
        await row(phase, BY_NAME[stop], hold, recorder)
    finally:
        hold.open()
    check(recorder.streams)


@pytest.mark.parametrize("seeds", SEEDS, ids=str)
def test_simulated_worlds(seeds: range) -> None:
    events = 0
    for seed in seeds:
        streams = {f"{seed} {name}": stream for name, stream in simulated(seed)}
        events += sum(map(len, streams.values()))
        check(streams, every=2)
    assert events > 100
