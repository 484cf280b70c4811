"""A receipt in one line, for people."""

from bargein.contracts.receipt import Receipt


def in_words(receipt: Receipt) -> str:
    """What was stopped, how fast, what is uncertain, what waits."""
    words = [f"stopped in {receipt.elapsed_ms:.0f} ms"]
    for step in receipt.steps:
        half = ", may have happened half" if step in receipt.uncertain else ""
        words.append(f"{step.summary or f'{step.name}: {step.status}'}{half}")
    if receipt.held:
        words.append(f"{len(receipt.held)} held")
    if not receipt.stored:
        words.append("not stored yet")
    return " · ".join(words)
