"""Sends messages to one chat: in order, within its rate, each piece once.

Four rules:

- A piece has a row before and after it is sent. `SENDING` without a platform id is an unknown
  outcome: the piece is sent again, in the same words under the same key if the platform has keys,
  and with a mark if it has none or may have forgotten it. A piece with a platform id is changed by
  an edit, which may be repeated. A preview that is a message has such a row too.
- Replies to commands go before answers, answers before previews. All of them, and typing, come out
  of one bucket; previews and typing leave one call free and are dropped when there is none.
- After a stop nothing of the stopped turn is sent. A call in flight may finish, because only then
  its outcome is known.
- An answer is never dropped because of a rate limit. It waits.
"""

import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable

import anyio
import msgspec

from bargein.channels.bucket import Bucket
from bargein.channels.contract import (
    Channel,
    ChatAddress,
    ChatKind,
    ChatMessage,
    Crowded,
    NotDelivered,
    NotReached,
    RetryLater,
)
from bargein.channels.rows import Ledger, Piece, PieceState
from bargein.channels.splitting import split
from bargein.channels.words import SENT_AGAIN
from bargein.contracts.value import Value

_log = logging.getLogger("bargein.channels")
_replace = msgspec.structs.replace

TYPING_S = 4.0
RETRY_FIRST_S = 0.5
RETRY_MAX_S = 30.0
LEFT_FOR_OTHERS = 1
PREVIEW_SHARE = 2 / 3
"""After this part of its time a preview is shown again."""


class Preview(Value, frozen=True):
    key: str
    turn: str
    text: str


class AllSent(Value, frozen=True):
    """Everything before it was sent: the log up to `seq` need not be read again. `turn` is over."""

    seq: int
    turn: str


class Outbox:
    """`failed` is called with what the platform said of a call that it did not take."""

    def __init__(
        self,
        channel: Channel,
        chat: ChatAddress,
        ledger: Ledger,
        session: str,
        rows: dict[str, Piece],
        failed: Callable[[str], None],
        now: Callable[[], float] = time.time,
    ) -> None:
        self._channel = channel
        self._chat = chat
        self._ledger = ledger
        self._session = session
        self.rows = rows
        self._failed = failed
        self._now = now
        traits = channel.traits
        in_group = chat.kind is ChatKind.GROUP and traits.group_rate is not None
        self._bucket = Bucket((traits.group_rate if in_group else None) or traits.rate)
        self._replies: deque[Piece] = deque()
        self._pieces: deque[Piece | AllSent] = deque()
        self._preview: Preview | None = None
        self._shown = ""
        self._shown_at = float("-inf")
        self._previews_after = float("-inf")
        self._open_preview = ""
        """The key of a preview that is a message, and that nobody has ended yet."""
        self._typing_at = float("-inf")
        self._stopped: set[str] = set()
        self._more = anyio.Event()
        self._retry_s = RETRY_FIRST_S
        self._native = channel.traits.previews
        self.busy = False
        self.working = False
        """Whether a turn runs, so that typing is shown."""

    @property
    def is_empty(self) -> bool:
        return not (self._replies or self._pieces or self.busy or self._open_preview)

    @property
    def unsent(self) -> int:
        return len(self._replies) + len(self._pieces) + self.busy

    # What the conversation says. None of it waits.

    def put(self, piece: Piece) -> None:
        self._pieces.append(piece)
        self._more.set()

    def put_done(self, done: AllSent) -> None:
        self._pieces.append(done)
        self._more.set()

    def put_reply(self, piece: Piece) -> None:
        self._replies.append(piece)
        self._more.set()

    def put_preview(self, preview: Preview | None, *, working: bool) -> None:
        wakes = preview != self._preview or working != self.working
        self._preview, self.working = preview, working
        if wakes:
            self._more.set()

    def stop(self, turn: str) -> None:
        """Nothing of this turn goes out any more."""
        self._stopped.add(turn)
        if self._preview is not None and self._preview.turn == turn:
            self._preview = None
        self.working = False

    # The loop that sends

    async def run(
        self, settled: Callable[[AllSent], Awaitable[None]], rested: Callable[[], object]
    ) -> None:
        """Until cancelled. Awaits `settled` for each `AllSent` that it reaches; calls `rested` when
        nothing is left to do for now."""
        while True:
            self._more = anyio.Event()
            if await self._one(settled):
                continue
            rested()
            await self._wait(self._idle_s())

    async def _wait(self, seconds: float | None) -> None:
        with anyio.move_on_after(seconds if seconds is not None else float("inf")):
            await self._more.wait()

    def _idle_s(self) -> float | None:
        """How long until a preview or a sign of typing may be sent; None if there is none."""
        waits = []
        if self._open_preview and not self._still_written:
            waits.append(self._bucket.wait_s(LEFT_FOR_OTHERS))
        if self._preview is not None:
            waits.append(max(self._preview_due_s, self._bucket.wait_s(LEFT_FOR_OTHERS)))
        if self.working:
            since = self._typing_at + TYPING_S - anyio.current_time()
            waits.append(max(since, self._bucket.wait_s(LEFT_FOR_OTHERS)))
        return min(waits, default=None)

    @property
    def _preview_due_s(self) -> float:
        """When the preview is to be shown: now if its text is new, else before it disappears."""
        if self._preview is None or self._preview.text != self._shown:
            return max(0.0, self._previews_after - anyio.current_time())
        if not self._native:
            return float("inf")
        again_s = self._channel.traits.preview_lasts_s * PREVIEW_SHARE
        return self._shown_at + again_s - anyio.current_time()

    async def _one(self, settled: Callable[[AllSent], Awaitable[None]]) -> bool:
        """Do the next thing. Returns False if there is nothing to do yet."""
        await self._drop_stopped()
        if not self._replies and self._pieces and isinstance(self._pieces[0], AllSent):
            done = self._pieces.popleft()
            assert isinstance(done, AllSent)
            await settled(done)
            return True
        if self._replies or self._pieces:
            await self._send_next()
            return True
        if self._bucket.wait_s(LEFT_FOR_OTHERS) > 0:
            return False
        if self._open_preview and not self._still_written:
            await self._end_preview()
            return True
        if self._preview is not None and self._preview_due_s <= 0:
            await self._send_preview(self._preview)
            return True
        if self.working and anyio.current_time() >= self._typing_at + TYPING_S:
            self._typing_at = anyio.current_time()
            self._bucket.take()
            await self._guarded_hint(lambda: self._channel.typing(self._chat))
            return True
        return False

    async def _drop_stopped(self) -> None:
        while self._pieces:
            first = self._pieces[0]
            if isinstance(first, AllSent) or first.turn not in self._stopped:
                return
            self._pieces.popleft()
            known = self.rows.get(first.key)
            if known is None or not known.platform_id:
                await self._keep(_replace(first, state=PieceState.DROPPED))

    async def _send_next(self) -> None:
        wait_s = self._bucket.wait_s()
        if wait_s > 0:
            await anyio.sleep(wait_s)
            return  # a stop or a reply may have come meanwhile
        queue = self._replies or self._pieces
        piece = queue[0]
        assert isinstance(piece, Piece)
        self.busy = True
        try:
            over = await self._deliver(piece)
        finally:
            self.busy = False
        if over:
            self._retry_s = RETRY_FIRST_S
            queue.popleft()
        elif not self._bucket.is_held:
            await anyio.sleep(self._retry_s)
            self._retry_s = min(2 * self._retry_s, RETRY_MAX_S)

    async def _deliver(self, piece: Piece, *, preview: bool = False) -> bool:
        """Returns whether there is nothing left to do for this piece."""
        known = self.rows.get(piece.key)
        if known is not None and known.state is PieceState.DROPPED:
            return True
        if known is not None and known.platform_id:
            same = (known.text, known.buttons) == (piece.text, piece.buttons)
            return same or await self._edit(known, piece, preview=preview)
        if known is None or known.state is not PieceState.SENDING:
            return await self._send(piece, preview=preview)
        same = (known.text, known.buttons) == (piece.text, piece.buttons)
        if same or not self._key_holds(known) or not self._channel.traits.edits:
            return await self._send(_replace(piece, again=True, at=known.at))
        # Under its key the platform keeps the words of the first try, if it has them: these again,
        # and then an edit.
        if not await self._send(_replace(known, again=True)):
            return False
        sent = self.rows[piece.key]
        if piece.turn in self._stopped:
            return True
        return await self._edit(sent, piece) if sent.platform_id else await self._send(piece)

    def _key_holds(self, piece: Piece) -> bool:
        traits = self._channel.traits
        return traits.keyed and self._now() - piece.at <= traits.key_lasts_s

    async def _send(self, piece: Piece, *, preview: bool = False) -> bool:
        piece = _replace(piece, state=PieceState.SENDING, at=piece.at or self._now())
        marked = piece.again and not self._key_holds(piece)
        await self._keep(piece)
        if piece.turn in self._stopped:
            # A stop came while the row was written.
            await self._keep(_replace(piece, state=PieceState.DROPPED))
            return True
        text = f"{SENT_AGAIN}\n{piece.text}" if marked else piece.text
        message = ChatMessage(text, self._named(piece.key), piece.buttons, piece.exact, preview)
        self._bucket.take()
        try:
            platform_id = await self._channel.send(self._chat, message)
        except RetryLater as error:
            self._hold(error, preview=preview)
            if not piece.again:
                await self._keep(_replace(piece, state=PieceState.WAITING, at=0.0))
            return False
        except NotDelivered as error:
            self._failed(str(error))
            await self._keep(_replace(piece, state=PieceState.DROPPED))
            return True
        except Exception as error:  # boundary: an adapter's, and nobody knows what became of it
            _log.warning("%s: a message to %s: %s", self._channel.name, self._chat.id, error)
            self._failed(str(error) or type(error).__name__)
            return False
        await self._keep(_replace(piece, state=PieceState.SENT, platform_id=platform_id))
        return True

    def _hold(self, error: RetryLater, *, preview: bool = False) -> None:
        if preview and isinstance(error, Crowded):
            self._previews_after = anyio.current_time() + error.after_s
            self._shown = ""
            return
        self._bucket.hold(error.after_s)
        if isinstance(error, NotReached):
            self._failed(str(error))

    async def _edit(self, known: Piece, piece: Piece, *, preview: bool = False) -> bool:
        key = self._named(piece.key)
        message = ChatMessage(piece.text, key, piece.buttons, piece.exact, preview)
        self._bucket.take()
        try:
            await self._channel.edit(self._chat, known.platform_id, message)
        except RetryLater as error:
            self._hold(error, preview=preview)
            return False
        except NotDelivered as error:
            self._failed(str(error))
            if known.question:
                return True
            # It cannot be changed any more: the words go out as a message of their own.
            return await self._send(_replace(piece, platform_id="", again=False, at=0.0))
        except Exception as error:  # boundary: an adapter's; an edit may be repeated
            self._failed(str(error) or type(error).__name__)
            return False
        sent = _replace(piece, state=PieceState.SENT, platform_id=known.platform_id)
        await self._keep(sent)
        if piece.key == self._open_preview:
            self._open_preview = ""
        return True

    async def _keep(self, piece: Piece) -> None:
        self.rows[piece.key] = piece
        await self._ledger.keep_piece(self._session, piece)

    # Previews

    @property
    def _still_written(self) -> bool:
        return self._preview is not None and self._preview.key == self._open_preview

    async def _send_preview(self, preview: Preview) -> None:
        self._shown, self._shown_at = preview.text, anyio.current_time()
        text = split(preview.text, self._channel.traits.text_max - 2)[0]
        known = self.rows.get(preview.key)
        unsent = known is None or known.state is PieceState.WAITING
        if self._native and self._channel.traits.previews_stay:
            if unsent or (known is not None and known.platform_id):
                await self._send_staying(preview, text, unsent=unsent)
        elif self._native:
            self._bucket.take()
            await self._guarded_hint(lambda: self._show(preview.key, f"{text} …"))
        elif self._channel.traits.edits:
            piece = Piece(preview.key, preview.turn, f"{text} …")
            if unsent or (known is not None and known.platform_id):
                self.busy = True
                try:
                    await self._deliver(piece, preview=True)
                finally:
                    self.busy = False

    async def _send_staying(self, preview: Preview, text: str, *, unsent: bool) -> None:
        """A preview that is a message: its row is written before it begins to exist, and after.
        Its text is empty there, so that the final words are never the same."""
        piece = Piece(preview.key, preview.turn, "")
        if unsent:
            await self._keep(_replace(piece, state=PieceState.SENDING, at=self._now()))
            if piece.turn in self._stopped:
                await self._keep(_replace(piece, state=PieceState.WAITING))
                return
        self._bucket.take()
        self.busy = True
        try:
            shown = await self._channel.preview(self._chat, self._named(preview.key), text)
        except RetryLater as error:
            self._hold(error)
            if unsent:
                await self._keep(_replace(piece, state=PieceState.WAITING))
            return
        except NotDelivered as error:
            # This chat takes no previews of the kind; nothing was sent.
            self._failed(str(error))
            self._native, self._shown = False, ""
            if unsent:
                await self._keep(_replace(piece, state=PieceState.WAITING))
            return
        except Exception as error:  # boundary: an adapter's; the final words are marked
            self._failed(str(error) or type(error).__name__)
            return
        finally:
            self.busy = False
        if shown is None:
            self._native, self._shown = False, ""
            await self._keep(_replace(piece, state=PieceState.WAITING))
        elif unsent:
            self._open_preview = preview.key
            await self._keep(_replace(piece, state=PieceState.SENT, platform_id=shown))

    async def _end_preview(self) -> None:
        """Nothing more comes: its turn was stopped, or failed."""
        key, self._open_preview = self._open_preview, ""
        self._bucket.take()
        await self._guarded_hint(lambda: self._show(key, ""))

    async def _show(self, key: str, text: str) -> None:
        shown = await self._channel.preview(self._chat, self._named(key), text)
        if shown is None:
            # This text goes out as an edit, also if no other follows.
            self._native, self._shown = False, ""

    def _named(self, key: str) -> str:
        return f"{self._session}.{key}"

    async def _guarded_hint(self, hint: Callable[[], Awaitable[None]]) -> None:
        """Nothing is lost if it fails."""
        try:
            await hint()
        except Crowded:
            pass
        except RetryLater as error:
            self._hold(error)
        except Exception as error:  # boundary: an adapter's
            self._failed(str(error) or type(error).__name__)
