"""The wire formats of the providers. Pure: bytes out, bytes in, no network.

A dialect knows how to write a request and makes one decoder per answer. A decoder takes the data
of one event at a time and appends the parts it means to a list. It says `finished` when the
provider has said why it stopped, and `done` when nothing more will come; `end` closes the answer
and is called once, at `done` or when the stream has ended.
"""

from typing import Protocol

from bargein.contracts.model import ModelRequest, Part, Usage
from bargein.models.errors import Secret


class Decoder(Protocol):
    finished: bool
    done: bool
    usage: Usage | None
    output_chars: int

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
