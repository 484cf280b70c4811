"""Fetches the files of one chat's messages, a few at a time, while earlier updates are handled. A
stop ends the fetching, and the messages go on without the files."""

from collections.abc import Awaitable, Callable, Coroutine
from functools import partial

import anyio

from bargein.channels import words
from bargein.channels.attachments import fetch_all
from bargein.channels.contract import Channel, Update
from bargein.contracts.message import Attachment

AHEAD_MAX = 10
AT_ONCE_MAX = 4

Files = tuple[list[Attachment], list[str]]
"""What was fetched, and a sentence for each file that is missing."""


class Fetch:
    def __init__(self, group: str | None) -> None:
        self.group = group
        self.scope = anyio.CancelScope()
        self.done = anyio.Event()
        self.files: Files = [], [words.NOT_FETCHED]


class Fetches:
    """`is_known` says whether a message was heard before: nothing is fetched for it again."""

    def __init__(
        self,
        channel: Channel,
        spawn: Callable[[Callable[[], Coroutine[object, object, None]]], None],
        is_known: Callable[[Update], Awaitable[bool]],
    ) -> None:
        self._channel = channel
        self._spawn = spawn
        self._is_known = is_known
        self._at_once = anyio.Semaphore(AT_ONCE_MAX)
        self._begun: dict[str, Fetch] = {}

    def begin(self, update: Update) -> None:
        if not update.attachments or update.key in self._begun or len(self._begun) >= AHEAD_MAX:
            return
        self._begun[update.key] = fetch = Fetch(update.group)
        self._spawn(partial(self._run, update, fetch))

    def stop(self) -> None:
        for fetch in self._begun.values():
            fetch.scope.cancel()

    def forget(self, update: Update) -> None:
        self._begun.pop(update.key, None)

    async def files_of(self, update: Update) -> Files:
        """The pictures of an album go together, however long each takes."""
        if not update.attachments:
            return [], []
        fetch = self._begun.get(update.key)
        if fetch is None:
            self._begun[update.key] = fetch = Fetch(update.group)
            await self._run(update, fetch)
        album = [each for each in self._begun.values() if each.group and each.group == fetch.group]
        try:
            for each in (fetch, *album):
                await each.done.wait()
            return fetch.files
        finally:
            self.forget(update)

    async def _run(self, update: Update, fetch: Fetch) -> None:
        try:
            with fetch.scope:
                async with self._at_once:
                    if not await self._is_known(update):
                        fetch.files = await fetch_all(self._channel, update.attachments)
        finally:
            fetch.done.set()
