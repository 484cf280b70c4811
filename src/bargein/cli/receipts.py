"""Describes a receipt for people, in one line or in full."""

from collections.abc import Sequence

from bargein.calls.receipt_words import NOT_STORED, left_open
from bargein.cancel import Cause
from bargein.contracts.budget import Spent
from bargein.contracts.receipt import Receipt, StoppedStep


def in_words(receipt: Receipt) -> str:
    """Says what was stopped, how fast, what is uncertain or left running, and what waits."""
    words = [f"stopped in {receipt.elapsed_ms:.0f} ms"]
    reason = receipt.reason.root if receipt.reason is not None else None
    if reason is not None and reason.cause in (Cause.BUDGET, Cause.DEADLINE):
        words.insert(0, reason.detail)
    for step in receipt.steps:
        half = ", may have happened half" if step in receipt.uncertain else ""
        words.append(f"{step.summary or f'{step.name}: {worded(step.status)}'}{half}")
    words += left_open(receipt)
    if receipt.held:
        words.append(f"{len(receipt.held)} held")
    if not receipt.stored:
        words.append(NOT_STORED)
    if receipt.spent is not None and receipt.spent.tokens:
        words.append(spent_in_words(receipt.spent))
    return " · ".join(words)


def all_in_words(receipts: Sequence[Receipt]) -> str:
    """One receipt for a stop of everything: what was stopped in each session."""
    if not receipts:
        return "nothing was running"
    slowest = max(receipt.elapsed_ms for receipt in receipts)
    many = "1 session" if len(receipts) == 1 else f"{len(receipts)} sessions"
    head = f"everything is stopped: {many} in {slowest:.0f} ms"
    return "\n".join([head, *(f"  {each.session}: {in_words(each)}" for each in receipts)])


def spent_in_words(spent: Spent) -> str:
    """Tokens used, and their cost where the price is known; "" if there are none. `about`: some
    counts are estimates."""
    if not spent.tokens:
        return ""
    tokens = f"{spent.tokens}" if spent.tokens < 10_000 else f"{spent.tokens / 1000:.0f}k"
    about = "about " if spent.estimated else ""
    if not spent.priced:
        return f"{about}{tokens} tokens"
    at_least = "at least " if spent.unpriced else ""
    cost = f"${spent.priced:.{2 if spent.priced >= 1 else 4}f}"
    return f"{about}{tokens} tokens · {at_least}{cost}"


def in_full(receipt: Receipt) -> str:
    """Lists each step and process, how each ended, and whether the kernel confirmed it."""
    lines = [in_words(receipt)]
    for step in receipt.steps:
        ms = step.elapsed_ms
        used = spent_in_words(Spent().with_request(step.usage)) if step.usage is not None else ""
        lines.append(
            f"  {step.kind} {step.name}: {worded(step.status)} after {ms:.0f} ms"
            + (f", {used}" if used else "")
        )
        lines += [f"    {line}" for line in _processes(step)]
    if receipt.reason is not None:
        lines.append(f"  asked for by {receipt.by or 'the user'} ({receipt.reason.root.cause})")
    if receipt.spent is not None:
        spent = receipt.spent
        used = spent_in_words(spent) or "no tokens"
        requests = f"{spent.requests} model request{'' if spent.requests == 1 else 's'}"
        lines.append(
            f"  in all: {requests}, {spent.input_tokens} tokens in, "
            f"{spent.output_tokens} out, {spent.time_s:.1f} s: {used}"
        )
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
