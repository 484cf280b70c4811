"""`bargein` from its first line: what Ctrl-C means is said before anything else is imported.

Until a command runs in its loop there is nothing to stop and nothing to tidy: the program is gone,
with the exit code of a Ctrl-C and without a word. So this file imports next to nothing, and neither
does the package. What comes before it is the interpreter's own start. It is for the entry points
alone, because it acts when it is imported: an installer's script does this and that before it
calls `main`.
"""

STOPPED = 130


def _end_with(exit_code: int) -> None:
    """From now on a Ctrl-C ends the program there and then; where it is ignored it stays so."""
    import os
    import signal

    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        return
    signal.signal(signal.SIGINT, lambda number, frame: os._exit(exit_code))


try:
    _end_with(STOPPED)
except KeyboardInterrupt:
    raise SystemExit(STOPPED) from None


def main() -> int:
    """Run the program that was started with this command line, and return its exit code."""
    exit_code = STOPPED
    try:
        from bargein.cli.program import run

        exit_code = run(own_process=True)
    except KeyboardInterrupt:
        return STOPPED
    finally:
        # The interpreter has only itself to put away.
        _end_with(exit_code)
    return exit_code
