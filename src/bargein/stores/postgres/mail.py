"""Mail between nodes. The row is the letter; NOTIFY is only the bell.

A bell is rung after the letter is in the database, in a statement of its own: NOTIFY inside the
transactions of many writers makes them wait for each other. A lost bell costs one look, every
`LOOK_S`. Bells for the same node that come together are rung once.

A letter has a key. The same key from the same sender is the same letter, also if it is posted
twice. A letter stays until its recipient has dealt with it. `answers` names the letter that it is
an answer to.

No statement about letters waits for the disk or for a standby, because that wait would be most of
the time that a letter takes. If PostgreSQL crashes at that moment a letter may be lost, or may come
again. So a sender posts again until there is an answer, and the recipient acts on a key once.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial

import asyncpg

from bargein.contracts.mail import Letter
from bargein.errors import BargeinError
from bargein.stores.postgres.connection import Connection, ReadConnections, connect
from bargein.stores.postgres.faults import LOST
from bargein.stores.postgres.nodes import channel_of
from bargein.stores.postgres.texts import as_it_was, kept

_log = logging.getLogger("bargein.stores")

LOOK_S = 2.0
AGAIN_S = 0.5
AT_ONCE = 64
BODY_BYTES_MAX = 4 * 1024 * 1024
KEPT_S = 3600

# For the transaction of this statement alone.
_NO_WAIT = "set_config('synchronous_commit', 'off', true)"
POST = f"""WITH quick AS MATERIALIZED (SELECT {_NO_WAIT})
    INSERT INTO bargein.mail (recipient, sender, key, answers, body)
    SELECT $1::text, $2::text, $3::text, $4::text, $5::bytea FROM quick
    ON CONFLICT (recipient, sender, key) DO NOTHING"""
RING = f"SELECT {_NO_WAIT}, pg_notify($1, '')"
READ = """SELECT number, sender, key, answers, body FROM bargein.mail
    WHERE recipient = $1 AND number > $2 ORDER BY number LIMIT $3"""
DONE = f"""WITH quick AS MATERIALIZED (SELECT {_NO_WAIT})
    DELETE FROM bargein.mail USING quick WHERE number = $1 AND recipient = $2"""
# To nodes that are gone: nobody will read it.
CLEAR = """DELETE FROM bargein.mail m WHERE m.at < clock_timestamp() - make_interval(secs => $1)
    AND NOT EXISTS (SELECT FROM bargein.nodes n WHERE n.id = m.recipient AND NOT n.dead)"""


Receive = Callable[[Letter], Awaitable[object]]


class Mailbox:
    """The mail of one node. `receive` gets each letter once, as long as it does not raise: then the
    letter is removed. It must not take long, and starts a task for what does."""

    def __init__(self, links: ReadConnections, direct: str, node: Callable[[], str]) -> None:
        self._links = links
        self._direct = direct
        self._node = node
        self._rung = asyncio.Event()
        self._ringing: dict[str, asyncio.Task[None]] = {}
        self._again: set[str] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self._on_bell: Callable[[], object] = lambda: None

    def listen(self, on_bell: Callable[[], object]) -> None:
        """Begin to hear the bell: `on_bell` is called for each."""
        self._on_bell = on_bell
        self._tasks.append(asyncio.get_running_loop().create_task(self._listen()))

    def open(self, receive: Receive) -> None:
        """Begin to read the mail."""
        self._tasks.append(asyncio.get_running_loop().create_task(self._read(receive)))

    async def post(self, recipient: str, letter: Letter) -> None:
        """Write the letter, then ring."""
        if len(letter.body) > BODY_BYTES_MAX:
            raise ValueError(f"a letter of {len(letter.body)} bytes is too large")
        values = (recipient, letter.sender, kept(letter.key), kept(letter.answers), letter.body)
        await self._links.run(lambda connection: connection.execute(POST, *values))
        self.ring(recipient)

    def ring(self, recipient: str) -> None:
        """Wake a node, soon. Rings that come while one is under way become one more."""
        if recipient in self._ringing:
            self._again.add(recipient)
            return
        task = asyncio.get_running_loop().create_task(self._ring(recipient))
        self._ringing[recipient] = task

    async def _ring(self, recipient: str) -> None:
        channel = channel_of(recipient)
        try:
            while True:
                self._again.discard(recipient)
                # A lost bell costs one look.
                with suppress(BargeinError, asyncpg.PostgresError):
                    await self._links.run(lambda connection: connection.execute(RING, channel))
                if recipient not in self._again:
                    return
        finally:
            del self._ringing[recipient]

    # --- receiving

    async def _listen(self) -> None:
        """Keep one connection on which the bell can be heard."""
        while True:
            node = self._node()
            connection: Connection | None = None
            try:
                connection = await connect(self._direct, keeps_statements=True, purpose="bell")
                gone = asyncio.Event()
                connection.add_termination_listener(lambda _, gone=gone: gone.set())
                await connection.add_listener(channel_of(node), self._hear)
                # What rang before the bell hung was not heard.
                self._hear()
                while not gone.is_set() and node == self._node():
                    with suppress(TimeoutError):
                        async with asyncio.timeout(LOOK_S):
                            await gone.wait()
            except (*LOST, asyncpg.PostgresError):
                await asyncio.sleep(AGAIN_S)
            finally:
                if connection is not None:
                    connection.terminate()

    def _hear(self, *_: object) -> None:
        self._rung.set()
        self._on_bell()

    async def _read(self, receive: Receive) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._rung.wait()
            self._rung.clear()
            try:
                await self._read_all(receive)
            except Exception as error:  # boundary: the next look finds what this one could not do
                _log.warning("mail of %s cannot be dealt with: %s", self._node(), error)

    async def _read_all(self, receive: Receive) -> None:
        node, place = self._node(), 0
        while True:
            rows = await self._links.run(partial(_read_some, node=node, after=place))
            for number, sender, key, answers, body in rows:
                place = number
                await receive(Letter(sender, as_it_was(key), body, as_it_was(answers)))
                await self._links.run(partial(_done_with, node=node, number=number))
            if len(rows) < AT_ONCE:
                return

    async def clear(self) -> None:
        """Remove old letters to nodes that are gone."""
        await self._links.run(lambda connection: connection.execute(CLEAR, float(KEPT_S)))

    async def aclose(self) -> None:
        tasks = [*self._tasks, *self._ringing.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _read_some(connection: Connection, node: str, after: int) -> list[asyncpg.Record]:
    return await connection.fetch(READ, node, after, AT_ONCE)


async def _done_with(connection: Connection, node: str, number: int) -> None:
    await connection.execute(DONE, number, node)
