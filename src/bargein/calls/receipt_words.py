"""Describes, for people, what the receipt of a stop cannot promise. Terminal and chat programs say
it in the same words.

Names of processes come from commands that a model wrote: they are bounded, and hidden characters
in them are visible.
"""

from bargein.calls.text import one_line
from bargein.calls.words import processes_text
from bargein.contracts.receipt import Receipt, StoppedStep

__all__ = ["NOT_STORED", "left_open"]

NOT_STORED = "not stored: the disk did not take it; a restart may show it as crashed"
STEPS_MAX = 3
PROCESSES_MAX = 3
TOLD_CHARACTERS_MAX = 200


def left_open(receipt: Receipt) -> list[str]:
    """Return a clause for each step whose processes survived the stop, or of which nobody knows
    whether they did. After `STEPS_MAX` of them, the last clause counts the others."""
    clauses = [clause for clause in map(_clause, receipt.steps) if clause]
    more = len(clauses) - STEPS_MAX
    return clauses if more <= 0 else [*clauses[:STEPS_MAX], f"the same of {more} more"]


def _clause(step: StoppedStep) -> str:
    detail = step.detail
    if detail is None:
        return ""
    if detail.survivors:
        return (
            f"could not be ended, still running: {processes_text(detail.survivors, PROCESSES_MAX)}"
        )
    if detail.confirmed:
        return ""
    if detail.told:
        return f"not confirmed: {one_line(detail.told, TOLD_CHARACTERS_MAX)}"
    if detail.means:
        return f"not confirmed that no process of {one_line(step.name, 40)} is left"
    return ""
