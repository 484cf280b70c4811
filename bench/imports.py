"""What `import bargein` costs, against the two libraries that it stands on.

Each sample is a fresh interpreter that times the one import inside itself, so starting Python is
not counted. The bar: at most 3 times `import anyio, msgspec`. A second row shows what a program
pays that then uses every public name.
"""

from __future__ import annotations

import subprocess
import sys

from bench.measure import Report, Sample, interleave

BASELINE = "import anyio, msgspec"
ROUNDS = 40


def fresh_interpreter(code: str) -> Sample:
    program = f"from time import perf_counter as p; t = p(); {code}; print(p() - t)"

    def sample() -> float:
        done = subprocess.run(
            [sys.executable, "-I", "-c", program], check=True, capture_output=True, text=True
        )
        return float(done.stdout)

    return sample


def main() -> int:
    codes = (BASELINE, "import bargein", "from bargein import *")
    # The first warm-up round writes the bytecode of modules that were never imported before.
    samples = interleave(
        {code: fresh_interpreter(code) for code in codes}, rounds=ROUNDS, warm_up_rounds=2
    )
    report = Report("imports")
    for code in codes[1:]:
        report.compare(code, samples, baseline=BASELINE, ours=code, bar=3, percents=(50, 95))
    report.note(f"Baseline: `{BASELINE}`. {ROUNDS} fresh interpreters each, in random order.")
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
