"""Gates: hold a task at a named point, do something meanwhile, let it go on.

The code under test gets a `Gates` from outside and says where it could be held:

    await gates.hold("before the commit")

which does nothing until a test closes that gate:

    gate = gates.close("before the commit")
    ...start the work...
    await gate.reached()
    ...interrupt it just there...
    gate.open()

That takes the place of sleeping for luck: the test is at that very point each time.
"""

import anyio


class Gate:
    """One named point. Whoever comes to it waits there until it is opened."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.arrivals = 0
        self.held = 0
        self._opened = anyio.Event()
        self._arrived = anyio.Event()

    def __repr__(self) -> str:
        state = "open" if self._opened.is_set() else f"closed, {self.held} held"
        return f"<Gate {self.name}: {state}, {self.arrivals} arrived>"

    async def reached(self, times: int = 1) -> None:
        """Wait until so many have come to it, since it was closed."""
        while self.arrivals < times:
            await self._arrived.wait()

    def open(self) -> None:
        """Let all go on who are held, and all who come later."""
        self._opened.set()

    async def pass_through(self) -> None:
        """Come to the gate; if it is closed, wait. A cancel ends the waiting as any other."""
        self.arrivals += 1
        arrived, self._arrived = self._arrived, anyio.Event()
        arrived.set()
        self.held += 1
        try:
            await self._opened.wait()
        finally:
            self.held -= 1


class Gates:
    """All gates of one test. A point that no test has closed holds nobody."""

    def __init__(self) -> None:
        self._gates: dict[str, Gate] = {}

    def close(self, name: str) -> Gate:
        """Close a point; from now on it holds whoever comes. A new gate each time."""
        gate = Gate(name)
        before = self._gates.get(name)
        if before is not None and before.held:
            raise RuntimeError(f"gate {name!r} still holds {before.held}; open it first")
        self._gates[name] = gate
        return gate

    async def hold(self, name: str) -> None:
        """For the code under test: this is the point `name`."""
        gate = self._gates.get(name)
        if gate is not None:
            await gate.pass_through()

    def open_all(self) -> None:
        for gate in self._gates.values():
            gate.open()
