"""One session on every screen: three terminals, a page, two programs, and 500 acts of people.

A seed picks the acts: send, stop, answer, edit the queue, leave and come back, share and unshare,
kill -9 of the host. In the end every screen must show what the log has, nothing lost, nothing
twice; otherwise this raises. `tests/cli/test_every_screen.py` does the same in small.
"""

import argparse
import os
import sys
import time
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.measure import Report
from tests.cli.every_screen import play
from tests.programs import find, node
from tests.server.page_visit import FLAGS

SEED, ACTS = 19, 500
TOLD_EACH = 25


def tell(done: int) -> None:
    if done % TOLD_EACH == 0:
        print(f"{time.strftime('%H:%M:%S')} {done} acts", file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--acts", type=int, default=ACTS)
    given = parser.parse_args()
    from playwright.sync_api import sync_playwright

    report = Report("together")
    os.environ["PLAYWRIGHT_NODEJS_PATH"] = node()
    began_at = time.monotonic()
    with TemporaryDirectory(prefix="bargein-bench-") as top, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find("chromium"), args=FLAGS)
        done = play(Path(top), browser, given.seed, given.acts, tell)
        browser.close()
    counts = ", ".join(f"{count} {name}" for name, count in Counter(done).most_common())
    report.note(f"seed {given.seed}: {len(done)} acts in {time.monotonic() - began_at:.0f} s")
    report.note(f"{counts}; every screen ends with the same picture")
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
