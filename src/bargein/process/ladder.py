"""Which rung of a stop comes next. One pure function."""

from enum import IntEnum

from bargein.process.values import Ladder


class Rung(IntEnum):
    INTERRUPT = 1
    TERMINATE = 2
    KILL = 3
    OVER = 4


def next_rung(
    rung: Rung, *, spent: bool, leader_gone: bool, nobody_left: bool, hurry: bool
) -> Rung:
    """`spent`: the time of this rung is used up.

    The first rung does not outlast the command's first process: what a shell starts in the
    background ignores SIGINT, and would use up the whole rung for nothing.
    """
    if nobody_left or rung is Rung.OVER:
        return Rung.OVER
    if rung is Rung.KILL:
        return Rung.OVER if spent else Rung.KILL
    if hurry:
        return Rung.KILL
    if rung is Rung.TERMINATE:
        return Rung.KILL if spent else Rung.TERMINATE
    return Rung.TERMINATE if spent or leader_gone else Rung.INTERRUPT


def budget_s(rung: Rung, ladder: Ladder) -> float:
    return {
        Rung.INTERRUPT: ladder.interrupt_s,
        Rung.TERMINATE: ladder.terminate_s,
        Rung.KILL: ladder.kill_s,
        Rung.OVER: 0.0,
    }[rung]
