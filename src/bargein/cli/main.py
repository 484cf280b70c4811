"""The entry point of `bargein`: decides what Ctrl-C does before anything else is imported.

Until a command runs in its loop there is nothing to stop or clean up: a Ctrl-C ends the program
silently, with the exit code of a Ctrl-C. So this file imports next to nothing, and neither does the
package; only the interpreter's own start comes earlier. Import it only from entry points, because
importing it installs the handler: an installer's script does various things before it calls `main`.
"""

STOPPED = 130


def _end_with(exit_code: int) -> None:
    """Makes a Ctrl-C end the program at once; an ignored SIGINT stays ignored."""
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
    """Runs the program with this process's command line and returns its exit code."""
    exit_code = STOPPED
    try:
        from bargein.cli.program import run

        exit_code = run(own_process=True)
    except KeyboardInterrupt:
        return STOPPED
    finally:
        # From here on the interpreter only shuts itself down.
        _end_with(exit_code)
    return exit_code
