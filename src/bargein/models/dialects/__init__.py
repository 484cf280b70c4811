"""The wire formats of the providers. Pure: bytes out, bytes in, no network.

A dialect encodes requests, and makes one decoder for each answer. A decoder takes the data of one
event at a time and appends the parts it contains to a list. `finished` is set when the provider has
given its reason to stop, `done` when nothing more will come. Call `end` once, at `done` or when the
stream has ended: it closes the answer. `job` is set if the provider goes on without the connection:
a POST to `JOB/cancel` below the path ends that.
"""

from typing import Protocol

from bargein.contracts.model import ModelRequest, Part, Usage
from bargein.models.errors import Secret


class Decoder(Protocol):
    finished: bool
    done: bool
    usage: Usage | None
    output_chars: int
    job: str

    def feed(self, data: bytes, out: list[Part]) -> None:
        """Decode the data of one event. Raises `StreamFault` for an error or nonsense."""
        ...

    def end(self, out: list[Part]) -> None:
        """Complete what was left open and append the end. Raises `StreamFault` if cut short."""
        ...


class Dialect(Protocol):
    name: str
    path: str
    url_variable: str
    key_variable: str

    def headers(self, key: Secret | None) -> dict[str, str]: ...

    def encode(self, model: str, request: ModelRequest) -> bytes: ...

    def decoder(self) -> Decoder: ...
