"""Plays the moves of a simulated model: pauses, parts, a failure."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import anyio.lowlevel

from bargein.cancel import Cancelled, Token
from bargein.contracts.model import Part
from bargein.models.errors import ModelError

if TYPE_CHECKING:
    from bargein.testing.simulation.life import Life

Move = float | Part | ModelError


async def next_part(life: "Life", moves: Iterator[Move], token: Token) -> Part:
    """Returns the next part, after the pauses before it, unless it is cancelled or fails first."""
    for move in moves:
        with token.scope():
            if isinstance(move, float):
                await life.sleep(move)
            else:
                await anyio.lowlevel.checkpoint()
        if token.cancelled:
            raise Cancelled(token)
        if isinstance(move, ModelError):
            raise move
        if not isinstance(move, float):
            return move
    raise AssertionError("an answer was read after its end")
