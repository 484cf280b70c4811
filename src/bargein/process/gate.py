"""Keeps a signal sent from another thread away from a pid or descriptor that is being given back.

A canceller's thread must not wait, so this is no lock: whoever does not get in goes away. A
canceller that does not get in loses nothing, since either somebody else is sending the same
signal, or the process has ended. Safe in a signal handler that interrupted the very thread that
is inside.
"""


class Gate:
    def __init__(self) -> None:
        self._key = [True]

    def enter(self) -> bool:
        try:
            self._key.pop()
        except IndexError:
            return False
        return True

    def leave(self) -> None:
        self._key.append(True)
