"""The terminal program's entry point."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

import bargein

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="bargein")
    parser.add_argument("--version", action="version", version=f"bargein {bargein.__version__}")
    parser.parse_args(arguments)
    return 0
