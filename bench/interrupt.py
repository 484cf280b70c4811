"""How well agents stop: Bargein and seven others, side by side (docs/interruptbench.md)."""

from __future__ import annotations

import sys

from bench.interruptbench.command import main

if __name__ == "__main__":
    sys.exit(main())
