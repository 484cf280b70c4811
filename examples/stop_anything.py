"""The kernel alone: four kinds of work, each stopped, and one that goes on.

python examples/stop_anything.py
"""

import time

import anyio

from bargein.cancel import CancelSource, Cause, TaskOwner, Token, run_abandonable, run_thread


async def polite(token: Token) -> str:
    with token.scope():
        await anyio.sleep(60)
    return f"{token.name}: {token.reason}"


def looks(token: Token) -> None:
    while True:
        token.sleep(0.01)


def never_looks() -> None:
    number = 0
    while True:
        number += 1


def blocks() -> None:
    time.sleep(2)


async def main() -> None:
    async with TaskOwner():
        with CancelSource("turn") as turn, CancelSource("another turn") as other:
            token = turn.token
            results: dict[str, object] = {}

            async def keep(name: str, work: object) -> None:
                results[name] = await work  # type: ignore[misc]

            async with anyio.create_task_group() as group:
                group.start_soon(
                    keep, "coroutine", run_abandonable(polite, token, token=token, grace_s=1.0)
                )
                group.start_soon(
                    keep, "thread that looks", run_thread(looks, token, token=token, grace_s=1.0)
                )
                group.start_soon(
                    keep, "loop", run_thread(never_looks, token=token, grace_s=1.0, stop="raise")
                )
                group.start_soon(keep, "blocked in C", run_thread(blocks, token=token, grace_s=0.2))
                await anyio.sleep(0.2)
                turn.cancel(Cause.USER_STOP)
            for name, outcome in results.items():
                print(f"{name:18} {getattr(outcome, 'status', outcome)}")
            print(f"{'another turn':18} {'cancelled' if other.token.cancelled else 'untouched'}")


if __name__ == "__main__":
    anyio.run(main)
