"""The terminal program: until the prompt is there, until a stop is on the screen, under a flood.

The real program in a PTY, read into a screen as a person would see it.

- Start: from `exec` until the prompt, against `python -c "import prompt_toolkit, rich"`.
- Stop: from the key press until the receipt and an empty prompt are on the screen, for an answer
  that streams; against the engine's own figure, from `interrupt` to its receipt, for the same
  script, as a library. The bar is on the difference.
- Hosts: the same start and stop in a terminal of a host, against one that runs the agent itself.
- Disconnect: from the key press until the provider sees that the client of a streaming answer is
  gone; against the engine's own figure for the same provider, from `interrupt`, as a library.
- Flood: an answer of 2,000 parts a second while somebody types. Every key must be in the line; the
  memory of the program must not grow with the answer.
"""

import subprocess
import sys
import time
from contextlib import aclosing
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
import psutil

from bargein import Agent, Engine
from bargein.contracts.live import TextDelta
from bargein.models.script import Pause, Say
from bargein.models.scripted import ScriptedModel
from bench._terminal_flood_server import WORDS
from bench._terminal_hosts import measure_hosts
from bench.measure import Report, Samples, interleave, percentile
from tests.cli.screen import CTRL_C, ESCAPE, Screen

STARTS = 15
STOPS = 15
DISCONNECTS = 40
TYPED = "the quick brown fox jumps over the lazy dog"
GROWTH_BYTES_MAX = 32 * 1024 * 1024

STREAMING = """
repeat = true
[[answers]]
steps = [{ do = "say", text = "one two three" }, { do = "pause", seconds = 60 }]
"""


def start_until_prompt(folder: Path) -> float:
    began_at = time.perf_counter()
    screen = Screen("chat", home=folder, script=STREAMING)
    screen.wait_for(">")
    seconds = time.perf_counter() - began_at
    screen.close()
    return seconds


def start_until_imported() -> float:
    began_at = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import prompt_toolkit, rich"], check=True)
    return time.perf_counter() - began_at


class Stopper:
    """One program, stopped again and again by a key."""

    def __init__(self, folder: Path) -> None:
        self._screen = Screen("chat", home=folder, script=STREAMING, rows=20)
        self._screen.wait_ready()
        self._stops = 0

    def by(self, key: str) -> float:
        screen = self._screen
        screen.enter("/new")
        screen.wait_for("a new session")
        screen.type("\x0c")
        screen.wait_for("a new session", gone=True)
        screen.enter("go")
        screen.wait_for("one two three")
        began_at = time.perf_counter()
        screen.type(key)
        screen.wait_for("stopped in")
        screen.wait_ready()
        return time.perf_counter() - began_at

    def close(self) -> None:
        self._screen.close()


def stop_engine() -> float:
    """The same stop without a terminal, on the same kind of store."""

    async def run() -> float:
        model = ScriptedModel([[Say("one two three"), Pause(60.0)]])
        with TemporaryDirectory() as home:
            async with Engine(
                Agent(model=model, workspace=home), home=Path(home, "data")
            ) as engine:
                session = await engine.session("bench")
                async with aclosing(session.watch()) as events:
                    await session.send("go")
                    async for event in events:
                        if isinstance(event, TextDelta):
                            break
                began_at = time.perf_counter()
                await session.interrupt()
                return time.perf_counter() - began_at

    return anyio.run(run, backend_options={"use_uvloop": True})


class HeldProvider:
    """A provider in its own process. It streams until the client goes, and reports when it saw
    that."""

    def __init__(self) -> None:
        program = [sys.executable, "-m", "bench._terminal_held_server"]
        self._server = subprocess.Popen(program, stdout=subprocess.PIPE, text=True)
        self._holds = 0
        self.model = f"openai:m@http://127.0.0.1:{self._line()}/v1"

    def next_words(self) -> str:
        """A message whose answer is streamed."""
        self._holds += 1
        return f"hold {self._holds}"

    def gone_at(self) -> float:
        """When it saw the client of the last answer go, by the monotonic clock."""
        number, nanoseconds = self._line().split()
        assert int(number) == self._holds, f"{number} ended while {self._holds} was held"
        return int(nanoseconds) / 1e9

    def _line(self) -> str:
        assert self._server.stdout is not None
        return self._server.stdout.readline().strip()

    def close(self) -> None:
        self._server.terminate()
        self._server.communicate()


class Disconnecter:
    """One program, whose answer is stopped again and again while its provider watches."""

    def __init__(self, folder: Path, provider: HeldProvider) -> None:
        self._provider = provider
        self._screen = Screen("chat", home=folder, script="", BARGEIN_MODEL=provider.model)
        self._screen.wait_ready()

    def by(self, key: str) -> float:
        screen = self._screen
        screen.type("\x0c")
        screen.wait_for("stopped in", gone=True)
        screen.enter(self._provider.next_words())
        screen.wait_for("word word word")
        began_at = time.monotonic()
        screen.type(key)
        seconds = self._provider.gone_at() - began_at
        screen.wait_for("stopped in")
        screen.wait_ready()
        return seconds

    def close(self) -> None:
        self._screen.close()


def disconnect_engine(provider: HeldProvider) -> float:
    """The same without a terminal."""

    async def run() -> float:
        with TemporaryDirectory() as home:
            agent = Agent(model=provider.model, workspace=home)
            async with Engine(agent, home=Path(home, "data")) as engine:
                session = await engine.session("bench")
                async with aclosing(session.watch()) as events:
                    await session.send(provider.next_words())
                    deltas = 0
                    async for event in events:
                        deltas += isinstance(event, TextDelta)
                        if deltas == 3:
                            break
                began_at = time.monotonic()
                await session.interrupt()
                return await anyio.to_thread.run_sync(provider.gone_at) - began_at

    return anyio.run(run, backend_options={"use_uvloop": True})


def disconnects(folder: Path, report: Report) -> None:
    provider = HeldProvider()
    try:
        disconnecter = Disconnecter(folder, provider)
        samples: Samples = interleave(
            {
                "engine": lambda: disconnect_engine(provider),
                "Esc": lambda: disconnecter.by(ESCAPE),
                "Ctrl-C": lambda: disconnecter.by(CTRL_C),
            },
            rounds=DISCONNECTS,
        )
        disconnecter.close()
    finally:
        provider.close()
    engine_s = percentile(samples["engine"], 50)
    report.figure("engine: interrupt until the provider sees it, p50", engine_s)
    for key in ("Esc", "Ctrl-C"):
        over_s = percentile(samples[key], 50) - engine_s
        report.figure(
            f"{key} until the provider sees it, over the engine's, p50", over_s, bar=0.008
        )
    for name, taken in samples.items():
        report.raw.append({"measure": "disconnect", "candidate": name, "samples_s": taken})


def flood(folder: Path, report: Report) -> None:
    program = [sys.executable, "-m", "bench._terminal_flood_server"]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        address = f"http://127.0.0.1:{server.stdout.readline().strip()}/v1"
        model = f"openai:m@{address}"
        screen = Screen("chat", home=folder, script="", BARGEIN_MODEL=model)
        try:
            _flood(screen, report)
        finally:
            screen.close()
            server.terminate()


def _flood(screen: Screen, report: Report) -> None:
    screen.wait_ready()
    process = psutil.Process(screen.pid)
    screen.enter("go")
    began_at = time.perf_counter()
    screen.wait_for("word3")
    slowest_s = 0.0
    for place in range(1, len(TYPED) + 1):
        pressed_at = time.perf_counter()
        screen.type(TYPED[place - 1])
        _see_line(screen, TYPED[:place].rstrip())
        slowest_s = max(slowest_s, time.perf_counter() - pressed_at)
    screen.wait_for(f"word{WORDS - 1}")
    took_s = time.perf_counter() - began_at
    try:
        _see_line(screen, TYPED)
    except AssertionError:
        report.violation(f"typed {TYPED!r}, in the line is {screen.line!r}")
    # What the first answer brings into memory is there to stay; more answers must not add to it.
    after_first = process.memory_info().rss
    for _ in range(2):
        screen.type("\x15")
        screen.enter("again")
        screen.wait_until(lambda: "working" in screen.status, "working")
        screen.wait_ready()
    grown = process.memory_info().rss - after_first
    if grown > GROWTH_BYTES_MAX:
        report.violation(f"the program grew by {grown >> 20} MiB under the flood")
    report.figure("flood: parts a second", WORDS / took_s, unit="parts/s")
    report.figure("flood: slowest of the keys until it is seen", slowest_s)
    report.figure("flood: growth by two more answers", grown / 2**20, unit="MiB", bar=8)
    report.note(f"Flood: {WORDS} parts an answer; {len(TYPED)} keys pressed meanwhile.")


def _see_line(screen: Screen, wanted: str) -> None:
    screen.wait_until(lambda: screen.line == wanted, f"{wanted!r} in the line")


def main() -> int:
    report = Report("terminal")
    with TemporaryDirectory(prefix="bargein-bench-") as top:
        folder = Path(top)
        starts = interleave(
            {
                "bargein": lambda: start_until_prompt(folder / "start"),
                "import": start_until_imported,
            },
            rounds=STARTS,
        )
        report.compare("start until the prompt", starts, baseline="import", ours="bargein", bar=3)
        stopper = Stopper(folder / "stop")
        stops: Samples = interleave(
            {
                "engine": stop_engine,
                "Esc": lambda: stopper.by(ESCAPE),
                "Ctrl-C": lambda: stopper.by(CTRL_C),
            },
            rounds=STOPS,
        )
        stopper.close()
        engine_s = percentile(stops["engine"], 50)
        report.figure("engine: interrupt until the receipt, p50", engine_s)
        for key in ("Esc", "Ctrl-C"):
            over_s = percentile(stops[key], 50) - engine_s
            report.figure(
                f"{key} until receipt and prompt, over the engine's, p50", over_s, bar=0.1
            )
            over_s = percentile(stops[key], 95) - percentile(stops["engine"], 95)
            report.figure(
                f"{key} until receipt and prompt, over the engine's, p95", over_s, bar=0.1
            )
        measure_hosts(folder / "hosts", report)
        disconnects(folder / "disconnect", report)
        flood(folder / "flood", report)
    report.note(f"{STARTS} starts, {STOPS} stops and {DISCONNECTS} disconnects each, interleaved.")
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
