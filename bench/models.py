"""Models: how fast an interrupt reaches the server, what parsing costs, what a core carries.

Every figure is a ratio to a baseline that runs in the same interleaved rounds:

- interrupts: the same HTTP client, bare, ended by `task.cancel()`. The server is another process
  and writes down, on the same monotonic clock, when it saw the client go;
- parsing: the official `openai` SDK, fed the same bytes from memory in the same pieces, in an
  environment of its own that is made for the purpose;
- streams: a loop over the same HTTP client that looks at nothing, at 50 parts a second each.

`--uvloop` runs our side and the bare client on uvloop; `--quick` takes fewer samples.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import random
import subprocess
import sys
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path

from bench._models_interrupts import measure_leaks, measure_seen, measure_unseen
from bench._models_parsing import measure_parsing
from bench._models_streams import measure_streams
from bench.measure import Report

HERE = Path(__file__).parent
ROUNDS = 50
CANCELS = 1000


@contextmanager
def process(*command: str) -> Iterator[str]:
    """A server in a process of its own; gives the first line it prints."""
    child = subprocess.Popen([sys.executable, *command], stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        yield child.stdout.readline().strip()
        child.stdout.close()
    finally:
        child.kill()
        child.wait()


def run(main: Coroutine[object, object, None]) -> None:
    if "--uvloop" in sys.argv:
        import uvloop

        uvloop.run(main)
    else:
        asyncio.run(main)


def add_local_rows(report: Report) -> None:
    """The embedded model has a bench of its own, whose rows belong in this table too."""
    if importlib.util.find_spec("bench.models_local") is None:
        report.note("The embedded model was not measured: there is no bench for it.")
        return
    importlib.import_module("bench.models_local").add_rows(report)


def main() -> int:
    report = Report("models")
    chance = random.Random(4)
    rounds = 5 if "--quick" in sys.argv else ROUNDS
    with process("-m", "bargein.testing.fault_server") as url:
        run(measure_seen(report, url, rounds, chance))
        run(measure_unseen(report, url, rounds, chance))
    with process("-m", "bargein.testing.fault_server") as url:
        run(measure_leaks(report, url, CANCELS, chance))
    measure_parsing(report)
    with process(str(HERE / "_models_paced_server.py")) as port:
        run(measure_streams(report, port))
    add_local_rows(report)
    loop = "uvloop" if "--uvloop" in sys.argv else "asyncio"
    report.note(f"Interrupts and streams on {loop}; baseline: aiohttp itself and task.cancel().")
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
