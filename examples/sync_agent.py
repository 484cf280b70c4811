"""The same engine without `await`: stopped from another thread, and by a message.

python examples/sync_agent.py
"""

import threading
import time

import anyio

from bargein import Turn
from bargein.sync import Engine


async def slow_echo(turn: Turn) -> str:
    words = turn.messages[-1].text
    for word in words.split():
        turn.emit(word + " ")
        await anyio.sleep(0.02)
    return words.upper()


def main() -> None:
    with Engine(slow_echo, store="memory") as engine:
        session = engine.session("alice")
        print(session.send("this is short").result())

        sent = session.send("on and on " * 1000)

        def stop_soon() -> None:
            time.sleep(0.1)
            receipt = session.interrupt(by="another thread")
            print(f"{receipt.status} by {receipt.by}")

        thread = threading.Thread(target=stop_soon)
        thread.start()
        # Comes back as soon as the turn has settled.
        result = sent.result()
        thread.join()
        print(f"the turn was {result.outcome}")

        session.send("on and on " * 1000)
        print(session.send("rather this", mode="interrupt").result())


if __name__ == "__main__":
    main()
