"""How the tests become an ordinary user, when they are run by root."""

from __future__ import annotations

import os

NOBODY = 65534


def as_ordinary_user() -> list[str]:
    """A command to put before another. Empty if we are one already.

    The interpreter and the project may be in folders of root's that nobody else can enter, so the
    right to read and search is kept; it lets nothing be written, started or signalled.
    """
    if os.geteuid() != 0:
        return []
    right = "dac_read_search"
    return [
        "setpriv",
        f"--reuid={NOBODY}",
        f"--regid={NOBODY}",
        "--clear-groups",
        f"--inh-caps=-all,+{right}",
        f"--ambient-caps=-all,+{right}",
        f"--bounding-set=-all,+{right}",
    ]
