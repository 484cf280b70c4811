"""Describes a receipt for people, in one line or in full."""

from bargein.cancel import Cause
from bargein.contracts.receipt import Receipt, StoppedStep


def in_words(receipt: Receipt) -> str:
    """Says what was stopped, how fast, what is uncertain and what waits."""
    words = [f"stopped in {receipt.elapsed_ms:.0f} ms"]
    reason = receipt.reason.root if receipt.reason is not None else None
    if reason is not None and reason.cause in (Cause.BUDGET, Cause.DEADLINE):
        words.insert(0, reason.detail)
    for step in receipt.steps:
        half = ", may have happened half" if step in receipt.uncertain else ""
        words.append(f"{step.summary or f'{step.name}: {worded(step.status)}'}{half}")
    if receipt.held:
        words.append(f"{len(receipt.held)} held")
    if not receipt.stored:
        words.append("not stored: the disk did not take it")
    return " · ".join(words)


def in_full(receipt: Receipt) -> str:
    """Lists each step and process, how each ended, and whether the kernel confirmed it."""
    lines = [in_words(receipt)]
    for step in receipt.steps:
        ms = step.elapsed_ms
        lines.append(f"  {step.kind} {step.name}: {worded(step.status)} after {ms:.0f} ms")
        lines += [f"    {line}" for line in _processes(step)]
    if receipt.reason is not None:
        lines.append(f"  asked for by {receipt.by or 'the user'} ({receipt.reason.root.cause})")
    for ids, what in ((receipt.held, "held"), (receipt.queued, "goes on by itself")):
        if ids:
            lines.append(f"  {what}: {', '.join(ids)}")
    return "\n".join(lines)


def worded(status: str) -> str:
    """Writes a status as people do: `not_started` as `not started`."""
    return status.replace("_", " ")


def _processes(step: StoppedStep) -> list[str]:
    if step.detail is None:
        return []
    ended = [
        f"pid {each.pid} {each.command}: {each.ended_by} after {each.elapsed_ms:.0f} ms"
        for each in step.detail.processes
    ]
    left = [f"pid {each.pid} {each.command}: STILL THERE" for each in step.detail.survivors]
    elsewhere = [step.detail.told] if step.detail.told else []
    if not step.detail.means:
        return [*ended, *left, *elsewhere]
    said = "nobody is left, says the kernel" if step.detail.confirmed else "not confirmed"
    return [*ended, *left, *elsewhere, f"{step.detail.means}: {said}"]
