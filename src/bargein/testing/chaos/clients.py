"""The clients of a run, and a record of the answers that they got."""

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

from bargein.testing.chaos.checker import Acknowledged, StopTold
from bargein.testing.chaos.node_process import NodeProcess

TRIES = 200
AGAIN_S = 0.02
PAUSE_S = 0.1
STOPS = 0.25


class ClientHistory:
    """What all clients were told."""

    def __init__(self) -> None:
        self.acknowledged: list[Acknowledged] = []
        self.stopped: list[StopTold] = []
        self.stops_asked: Counter[str] = Counter()
        self.answers: Counter[str] = Counter()


class ChaosClient:
    """Sends and stops until it is told to end. It asks again, at any node, until it is answered,
    as any client would."""

    def __init__(
        self,
        name: str,
        nodes: Sequence[NodeProcess],
        sessions: Sequence[str],
        history: ClientHistory,
    ) -> None:
        self._name = name
        self._nodes = nodes
        self._sessions = sessions
        self._history = history
        self._over = False

    def end(self) -> None:
        self._over = True

    async def live(self, dice: random.Random) -> None:
        count = 0
        while not self._over:
            session = dice.choice(self._sessions)
            if dice.random() < STOPS:
                await self._stop(session, dice)
            else:
                count += 1
                await self._send(session, f"{self._name}.{count}", dice)
            await asyncio.sleep(dice.uniform(0, PAUSE_S))

    async def _send(self, session: str, key: str, dice: random.Random) -> None:
        mode = dice.choice(["steer", "queue", "interrupt"])
        for _ in range(TRIES):
            node = dice.choice(self._nodes)
            said = await node.ask(do="send", session=session, text=key, mode=mode, key=key)
            if "message" in said:
                self._history.answers["message accepted"] += 1
                self._history.acknowledged.append(Acknowledged(session, key))
                return
            self._history.answers[f"message sent again: {_cause(said)}"] += 1
            await asyncio.sleep(AGAIN_S)
            if self._over:
                return

    async def _stop(self, session: str, dice: random.Random) -> None:
        history = self._history
        while True:
            history.stops_asked[session] += 1
            said = await dice.choice(self._nodes).ask(do="stop", session=session)
            if "status" in said:
                history.answers[f"stop {said['status']}"] += 1
                if said["stored"]:
                    history.stopped.append(StopTold(session, said["status"], said["turn"]))
                break
            # By the cause: a node that was killed or frozen cannot answer, any other must.
            history.answers[f"stop asked again: {_cause(said)}"] += 1
            if self._over:
                history.answers["stop without a receipt at the end"] += 1
                break
            await asyncio.sleep(AGAIN_S)
        # What it holds is to run too. Only the node that has the session can let it on.
        await asyncio.gather(*(each.ask(do="continue", session=session) for each in self._nodes))


def _cause(said: dict[str, Any]) -> str:
    """The kind of a failure, without the names in it."""
    if "elsewhere" in said:
        return "another node has the session"
    return str(said.get("error", "nothing said")).partition(":")[0]
