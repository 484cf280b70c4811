"""How a child of ours ended."""

import os


def collect(pid: int, *, peek: bool = False) -> int | None:
    """As an exit code, or minus a signal; None if it has not ended or somebody else collected it.

    With `peek` it stays uncollected, and so its pid stays its own.
    """
    try:
        result = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | (os.WNOWAIT if peek else 0))
    except ChildProcessError:
        return None
    if result is None:
        return None
    return result.si_status if result.si_code == os.CLD_EXITED else -result.si_status
