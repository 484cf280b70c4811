"""Terminals of a host against one that runs the agent itself: until it is ready, until a stop is on
the screen.

The bar for a stop is the terminal's own figure plus a round trip to the host and back, which is
measured through the same socket.
"""

import os
import select
import signal
import time
from pathlib import Path

import anyio

from bargein.client import Client
from bargein.runtime.data_directory import DOOR_FILE
from bargein.runtime.directory_lock import owner_of
from bench.measure import Report, Samples, interleave, percentile
from tests.cli.screen import ESCAPE, Screen

STARTS = 12
STOPS = 25
ROUND_TRIPS = 200
GONE_S = 30.0

STREAMING = """
repeat = true
[[answers]]
steps = [{ do = "say", text = "one two three" }, { do = "pause", seconds = 60 }]
"""


def open_screen(folder: Path, *, hosted: bool) -> Screen:
    return Screen(
        "chat", home=folder, script=STREAMING, rows=20, BARGEIN_CHAT_HOST="1" if hosted else "0"
    )


def until_ready(folder: Path, *, hosted: bool) -> float:
    began_at = time.perf_counter()
    screen = open_screen(folder, hosted=hosted)
    screen.wait_ready()
    seconds = time.perf_counter() - began_at
    screen.close()
    return seconds


def end_host(folder: Path) -> None:
    owner = owner_of(folder / "data")
    if owner is not None:
        process = os.pidfd_open(owner.pid)
        os.kill(owner.pid, signal.SIGTERM)
        select.select([process], [], [], GONE_S)
        os.close(process)


def first_start(folder: Path) -> float:
    end_host(folder)
    return until_ready(folder, hosted=True)


class Stopped:
    """One terminal, stopped again and again."""

    def __init__(self, folder: Path, *, hosted: bool) -> None:
        self.screen = open_screen(folder, hosted=hosted)
        self.screen.wait_ready()

    def by_escape(self) -> float:
        screen = self.screen
        screen.enter("/new")
        screen.wait_for("a new session")
        screen.type("\x0c")
        screen.wait_for("a new session", gone=True)
        screen.enter("go")
        screen.wait_for("one two three")
        began_at = time.perf_counter()
        screen.type(ESCAPE)
        screen.wait_for("stopped in")
        screen.wait_ready()
        return time.perf_counter() - began_at


def round_trip_s(folder: Path) -> float:
    async def measure() -> float:
        async with Client(f"unix:{folder / 'data' / DOOR_FILE}") as client:
            taken = []
            for _ in range(ROUND_TRIPS):
                began_at = time.perf_counter()
                await client.me()
                taken.append(time.perf_counter() - began_at)
            return percentile(taken, 50)

    return anyio.run(measure, backend_options={"use_uvloop": True})


def measure_hosts(folder: Path, report: Report) -> None:
    own, warm, cold = folder / "own", folder / "warm", folder / "cold"
    folder.mkdir()
    keeping = open_screen(warm, hosted=True)
    keeping.wait_ready()
    try:
        starts: Samples = interleave(
            {
                "itself": lambda: until_ready(own, hosted=False),
                "host": lambda: until_ready(warm, hosted=True),
                "first": lambda: first_start(cold),
            },
            rounds=STARTS,
        )
        for name, ours, bar in (
            ("with a host running", "host", 1.2),
            ("first start", "first", 1.8),
        ):
            report.compare(
                f"start until ready, {name}", starts, baseline="itself", ours=ours, bar=bar
            )
        alone, attached = Stopped(own, hosted=False), Stopped(warm, hosted=True)
        stops: Samples = interleave(
            {"itself": alone.by_escape, "host": attached.by_escape}, rounds=STOPS
        )
        trip_s = round_trip_s(warm)
        alone.screen.close()
        attached.screen.close()
    finally:
        keeping.close()
        end_host(warm)
        end_host(cold)
    report.figure("a round trip to the host, p50", trip_s)
    for percent in (50, 95):
        over_s = percentile(stops["host"], percent) - percentile(stops["itself"], percent)
        report.figure(
            f"Esc in a terminal of a host, over the terminal's own, p{percent}", over_s, bar=trip_s
        )
    for measured in (starts, stops):
        for name, taken in measured.items():
            report.raw.append({"measure": "host", "candidate": name, "samples_s": taken})
