"""The messages between parent and child before the first request, and why a child failed."""

import signal
from collections.abc import Callable
from typing import Final

import msgspec

from bargein.models.errors import excerpt
from bargein.models.local.child import MARK
from bargein.models.local.errors import LocalModelError, RuntimeFailed, missing, unloadable
from bargein.process import Exit

_LINE_BYTES_MAX: Final = 64 * 1024
_REASON: Final = "error loading model: "


class Order(msgspec.Struct, frozen=True):
    """The parent's one line of JSON on the child's input."""

    name: str
    path: str
    key: str
    context_tokens: int
    batch_tokens: int
    requests_at_once: int
    cache_mib: int
    threads: int | None
    output_tokens_max: int
    sampling: dict[str, float]


class Facts(msgspec.Struct, frozen=True, tag_field="what", tag="ready"):
    """The child's report that it serves: where, and what the model can do."""

    address: str
    context_tokens: int
    reads_tools: bool = False
    sees_images: bool = False


class Failure(msgspec.Struct, frozen=True, tag_field="what", tag="failed"):
    error: str


_answers = msgspec.json.Decoder(Facts | Failure)


class Ears:
    """Finds the child's one answer in its output."""

    def __init__(self, wake: Callable[[], object]) -> None:
        self._wake = wake
        self._pending = b""
        self.answer: Facts | Failure | None = None

    def hear(self, chunk: bytes) -> None:
        if self.answer is not None:
            return
        *lines, self._pending = (self._pending + chunk).split(b"\n")
        self._pending = self._pending[-_LINE_BYTES_MAX:]
        for line in lines:
            if line.startswith(MARK):
                self.answer = _answers.decode(line.removeprefix(MARK))
                self._wake()
                return


def explain(
    model: str, answer: Failure | None, ended: Exit | None, output: str, instead: str
) -> LocalModelError:
    """Returns the error that explains why a child does not serve."""
    if answer is not None:
        if answer.error.startswith("ModuleNotFoundError"):
            return missing(model)
        if answer.error.startswith(("ImportError", "OSError")):
            return unloadable(model, excerpt(answer.error, chars_max=200))
        why = f"the runtime cannot load it: {_reason(output) or answer.error}"
        return RuntimeFailed(f"{model}: {why}. {instead}", model=model)
    if ended is not None and ended.signal == signal.SIGILL:
        why = "its runtime needs instructions that this machine's processor does not have"
        return RuntimeFailed(f"{model}: {why} (SIGILL). {instead}", model=model)
    why = f"its process ended while it loaded ({ended})"
    if ended is not None and ended.signal == signal.SIGKILL:
        why += "; if memory ran out, free some or choose a smaller model"
    elif said := _last_line(output):
        why += f": {said}"
    return RuntimeFailed(f"{model}: {why}. {instead}", model=model, retryable=True)


def _reason(output: str) -> str:
    for line in output.splitlines():
        _, found, reason = line.partition(_REASON)
        if found:
            return excerpt(reason, chars_max=300)
    return ""


def _last_line(output: str) -> str:
    lines = [line for line in output.splitlines() if line.strip()]
    return excerpt(lines[-1], chars_max=300) if lines else ""
