"""`python -m bench` lists the benches; `python -m bench NAME ...` runs one, alone on this machine.

Two benches at once would measure each other. The lock is a file that every user of the machine can
take; it is held by an open descriptor, so it goes with the process, however that ends.
"""

from __future__ import annotations

import ast
import fcntl
import os
import runpy
import sys
from pathlib import Path

HERE = Path(__file__).parent
LOCK = "/tmp/bargein-bench.lock"
NOT_BENCHES = {"__init__", "__main__", "measure"}


def benches() -> dict[str, str]:
    """Returns each bench by name, with the first line of its docstring."""
    found = {}
    for path in sorted(HERE.glob("*.py")):
        if path.stem not in NOT_BENCHES and not path.stem.startswith("_"):
            text = ast.get_docstring(ast.parse(path.read_text())) or ""
            found[path.stem] = text.partition("\n")[0]
    return found


def take_lock(path: str = LOCK) -> int:
    """Waits until no other bench runs. The lock is held as long as the descriptor is open."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    except PermissionError:
        # Another user's file in a sticky directory: it may be opened, but not with O_CREAT.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print("Waiting: another bench runs on this machine.", file=sys.stderr)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    return descriptor


def main(arguments: list[str]) -> int:
    known = benches()
    name, *rest = arguments or [""]
    if name not in known:
        if name:
            print(f"There is no bench {name!r}.", file=sys.stderr)
        width = max(map(len, known), default=0)
        for bench, line in known.items():
            print(f"{bench:{width}}  {line}", file=sys.stderr if name else sys.stdout)
        return 2 if name else 0
    take_lock()
    sys.argv = [str(HERE / f"{name}.py"), *rest]
    runpy.run_module(f"bench.{name}", run_name="__main__", alter_sys=True)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
