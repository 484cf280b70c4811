"""The runtime's variant of Chat Completions, with progress reports while it reads the prompt.

The reports matter for stopping. The runtime notices that a client has gone when it writes to it,
and otherwise checks only once a second. With a report after each batch it stops reading within two
batches.
"""

from collections.abc import Callable

import msgspec

from bargein.contracts.model import ModelRequest, Part
from bargein.models.dialects import Decoder
from bargein.models.dialects.chat import ChatDecoder, ChatDialect

OnProgress = Callable[[int, int], object]


class LocalDialect(ChatDialect):
    name = "local"
    url_variable = "BARGEIN_MODEL"
    key_variable = "BARGEIN_MODEL"

    def __init__(self, on_progress: OnProgress) -> None:
        super().__init__()
        self._on_progress = on_progress

    def encode(self, model: str, request: ModelRequest) -> bytes:
        body = super().encode(model, request)
        return body[:-1] + b',"return_progress":true}'

    def decoder(self) -> Decoder:
        return LocalDecoder(self._on_progress)


class _Progress(msgspec.Struct, gc=False):
    total: int
    processed: int


class _Chunk(msgspec.Struct, gc=False):
    prompt_progress: _Progress | None = None


_chunks = msgspec.json.Decoder(_Chunk)


class LocalDecoder(ChatDecoder):
    def __init__(self, on_progress: OnProgress) -> None:
        super().__init__()
        self._on_progress = on_progress

    def feed(self, data: bytes, out: list[Part]) -> None:
        if b'"prompt_progress"' in data:
            self._tell(data)
        super().feed(data, out)

    def _tell(self, data: bytes) -> None:
        try:
            progress = _chunks.decode(data).prompt_progress
        except msgspec.DecodeError:
            return  # the model's text happens to contain the word
        if progress is not None:
            self._on_progress(progress.processed, progress.total)
