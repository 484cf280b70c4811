"""Decides who may speak to a bot. A stranger gets no answer.

The operator makes a code (`bargein channels pair`) and gives it to a person, who sends it to the
bot. That pairs this person in this chat, and in no other. A code works once, within ten minutes, in
a chat of the kind it was made for. A pairing in a private chat does not count in groups, and
another person in the same group stays a stranger.
"""

import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Callable

import msgspec

from bargein.channels.contract import ChatAddress, ChatKind, Person
from bargein.channels.rows import Ledger, Pairing, PairingCode
from bargein.contracts.permission import Standing
from bargein.errors import UserError

CODE_S = 600.0
WRONG_MAX = 10
CODES_MAX = 16
_LETTERS = "ABCDEFGHJKMNPQRSTVWXYZ23456789"
_CODE = re.compile(rf"(?:/(?:start|pair) )?([{_LETTERS}]{{4}}-?[{_LETTERS}]{{4}})", re.IGNORECASE)


class ChannelAccess:
    def __init__(self, ledger: Ledger, now: Callable[[], float] = time.time) -> None:
        self._ledger = ledger
        self._now = now
        self._since = now()

    async def admits(self, chat: ChatAddress, person: Person) -> bool:
        """A private chat that becomes a group is another kind of chat: its pairing is void."""
        pairing = await self._ledger.pairing(chat, person.id)
        return pairing is not None and pairing.kind is chat.kind

    async def standing_of(self, chat: ChatAddress, person: Person) -> Standing:
        """Approvers are those who were paired in their private chat before this program started:
        an agent that pairs somebody while it runs wins nothing by it. In a group everybody is a
        writer at most."""
        pairing = await self._ledger.pairing(chat, person.id)
        known_before = pairing is not None and pairing.at < self._since
        is_private = chat.kind is ChatKind.PRIVATE
        return Standing.APPROVER if known_before and is_private else Standing.WRITER

    async def make_code(self, kind: ChatKind) -> str:
        """A new code, for the operator to hand over."""
        now = self._now()
        codes = await self._ledger.codes()
        for code in codes:
            if code.until <= now:
                await self._ledger.drop_code(code)
        if sum(code.until > now for code in codes) >= CODES_MAX:
            raise UserError(f"{CODES_MAX} pairing codes are waiting to be used; use those first")
        text = "".join(secrets.choice(_LETTERS) for _ in range(8))
        await self._ledger.keep_code(PairingCode(_hash(text), kind, now + CODE_S))
        return f"{text[:4]}-{text[4:]}"

    async def try_code(
        self, text: str, chat: ChatAddress, person: Person, *, key: str = ""
    ) -> bool:
        """Pair a person who sends a code that holds, in the message `key`. Each wrong try counts
        against every code that waits, so that guessing ends them."""
        found = _CODE.fullmatch(text.strip())
        if found is None:
            return False
        given = _hash(found[1].replace("-", "").upper())
        for code in await self._ledger.codes():
            if code.until <= self._now():
                await self._ledger.drop_code(code)
            elif hmac.compare_digest(code.hash, given) and code.kind is chat.kind:
                pairing = Pairing(person.id, chat.id, chat.kind, person.name, self._now())
                await self._ledger.pair(pairing, code, heard=key)
                return True
            elif code.wrong + 1 >= WRONG_MAX:
                await self._ledger.drop_code(code)
            else:
                await self._ledger.keep_code(msgspec.structs.replace(code, wrong=code.wrong + 1))
        return False

    async def revoke(self, person: str) -> int:
        """End every pairing of this person. Returns how many there were."""
        theirs = [each for each in await self._ledger.pairings() if each.person == person]
        for pairing in theirs:
            await self._ledger.unpair(pairing)
        return len(theirs)


def _hash(code: str) -> bytes:
    return hashlib.sha256(code.encode()).digest()
