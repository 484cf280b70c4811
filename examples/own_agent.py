"""An agent of your own in place of the built-in loop: it counts, listens, and is stopped.

python examples/own_agent.py
"""

from contextlib import aclosing

import anyio

from bargein import Engine, Session, Turn
from bargein.events import TextDelta


async def counter(turn: Turn) -> str:
    """Counts to what it is told; a message that comes meanwhile changes how far."""
    goal = int(turn.messages[-1].text)
    number = int(turn.state or b"0")
    # Called in the loop at the moment of a stop, whatever is being awaited.
    turn.on_cancel(lambda: print(f"  stopped at {number}"))
    while number < goal:
        number += 1
        # Stored when the turn ends, also if it is stopped, and there for the next one.
        turn.state = str(number).encode()
        turn.emit(f"{number} ")
        await anyio.sleep(0.01)
        # Between two steps: waits while the turn is paused, gives what steers it.
        for message in await turn.boundary():
            goal = int(message.text)
            print(f"  now to {goal}")
    return f"counted to {number}"


async def until_it_counts(session: Session) -> None:
    async with aclosing(session.watch()) as events:
        async for event in events:
            if isinstance(event, TextDelta):
                return


async def main() -> None:
    async with Engine(counter, store="memory") as engine:
        session = await engine.session("alice")

        sent = await session.send("3")
        print(await sent.result())

        sent = await session.send("1000000")
        await until_it_counts(session)
        await session.send("12", mode="steer")
        print(await sent.result())

        await session.send("1000000")
        await until_it_counts(session)
        receipt = await session.interrupt()
        print(f"{receipt.status}, within a second: {receipt.elapsed_ms < 1000}")

        sent = await session.send("1")
        print(f"it is still there: {await sent.result()}")


if __name__ == "__main__":
    anyio.run(main)
