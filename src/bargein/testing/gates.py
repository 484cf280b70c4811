"""Gates: hold a task at a named point, do something meanwhile, then let it continue.

The code under test receives a `Gates` and names the points where it can be held:

    await gates.hold("before the commit")

This does nothing until a test closes that gate:

    gate = gates.close("before the commit")
    ...start the work...
    await gate.reached()
    ...interrupt it just there...
    gate.open()

This replaces sleeping for luck: the test is at exactly that point every time.
"""

import anyio


class Gate:
    """One named point. A task that arrives waits there until the gate is opened."""

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
        """Waits until `times` tasks have arrived since the gate was closed."""
        while self.arrivals < times:
            await self._arrived.wait()

    def open(self) -> None:
        """Lets all held tasks continue, and all that come later."""
        self._opened.set()

    async def pass_through(self) -> None:
        """Arrives at the gate and waits if it is closed. A cancel ends the wait as usual."""
        self.arrivals += 1
        arrived, self._arrived = self._arrived, anyio.Event()
        arrived.set()
        self.held += 1
        try:
            await self._opened.wait()
        finally:
            self.held -= 1


class Gates:
    """All gates of one test. A point that no test has closed holds nothing."""

    def __init__(self) -> None:
        self._gates: dict[str, Gate] = {}

    def close(self, name: str) -> Gate:
        """Closes a point: it holds every task that arrives from now on. A new gate each time."""
        gate = Gate(name)
        before = self._gates.get(name)
        if before is not None and before.held:
            raise RuntimeError(f"gate {name!r} still holds {before.held}; open it first")
        self._gates[name] = gate
        return gate

    async def hold(self, name: str) -> None:
        """Marks the point `name` in the code under test."""
        gate = self._gates.get(name)
        if gate is not None:
            await gate.pass_through()

    def open_all(self) -> None:
        for gate in self._gates.values():
            gate.open()
