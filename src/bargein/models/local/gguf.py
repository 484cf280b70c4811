"""Reads the header of a GGUF file: enough to recognize a model and its context size.

Reads no weights. Every length in the file is checked against the bytes left, so that a damaged or
hostile file costs neither memory nor time: at most `HEAD_BYTES_MAX` bytes are read.
"""

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

from bargein.models.local.errors import INSTEAD_OF_FILE, ModelFileError

HEAD_BYTES_MAX: Final = 64 * 1024 * 1024
_ENTRIES_MAX: Final = 100_000
_STRING, _ARRAY = 8, 9
_FORMATS: Final = {
    0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i",
    6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class GgufHeader:
    architecture: str
    context_tokens: int | None


class _Malformed(Exception):
    pass


def read_head(path: Path) -> GgufHeader:
    """Raises `ModelFileError` if the file is missing, unreadable or not a model."""
    try:
        # Checked first: opening a pipe or a device would wait for a writer.
        if path.is_dir():
            raise _Malformed("it is a folder; name the .gguf file in it")
        if path.exists() and not path.is_file():
            raise _Malformed("it is not a plain file")
        with path.open("rb") as file:
            return _Reader(file).head()
    except FileNotFoundError:
        problem = "it does not exist"
    except PermissionError:
        problem = "you may not read it"
    except OSError as error:
        problem = f"it cannot be read ({error.strerror or error})"
    except _Malformed as error:
        problem = str(error)
    raise ModelFileError(f"{path} cannot be used as a model: {problem}. {INSTEAD_OF_FILE}")


class _Reader:
    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._left = HEAD_BYTES_MAX

    def head(self) -> GgufHeader:
        if self._file.read(4) != b"GGUF":
            raise _Malformed("it is not in the GGUF format")
        version = self._number("<I")
        if version not in (2, 3):
            raise _Malformed(f"its GGUF version is {version}; the runtime reads 2 and 3")
        tensors, entries = self._number("<Q"), self._number("<Q")
        if not tensors:
            raise _Malformed("it has no weights in it")
        if entries > _ENTRIES_MAX:
            raise _Malformed("its head is damaged")
        return self._find(entries)

    def _find(self, entries: int) -> GgufHeader:
        """Reads until both facts are known; the long vocabulary comes after them."""
        architecture = ""
        contexts: dict[str, int] = {}
        for _ in range(entries):
            key = self._text()
            value = self._value(self._number("<I"))
            if key == "general.architecture" and isinstance(value, str):
                architecture = value
            elif key.endswith(".context_length") and isinstance(value, int):
                contexts[key.removesuffix(".context_length")] = value
            if architecture in contexts:
                break
        if not architecture:
            raise _Malformed("it does not say which architecture it has")
        return GgufHeader(architecture, contexts.get(architecture))

    def _value(self, kind: int) -> str | int | float | bool | None:
        if kind == _STRING:
            return self._text()
        if kind == _ARRAY:
            self._skip_array()
            return None
        value: int | float | bool = self._unpack(self._format(kind))
        return value

    def _skip_array(self) -> None:
        kind, length = self._number("<I"), self._number("<Q")
        if kind == _STRING:
            if length > self._left:
                raise _Malformed("its head is damaged")
            for _ in range(length):
                self._bytes(self._number("<Q"))
        elif kind == _ARRAY:
            raise _Malformed("its head is damaged")
        else:
            self._bytes(length * struct.calcsize(self._format(kind)))

    def _format(self, kind: int) -> str:
        found = _FORMATS.get(kind)
        if found is None:
            raise _Malformed("its head is damaged")
        return found

    def _text(self) -> str:
        return self._bytes(self._number("<Q")).decode("utf-8", "replace")

    def _number(self, layout: str) -> int:
        number: int = self._unpack(layout)
        return number

    def _unpack(self, layout: str) -> Any:
        return struct.unpack(layout, self._bytes(struct.calcsize(layout)))[0]

    def _bytes(self, size: int) -> bytes:
        self._left -= size
        if self._left < 0:
            raise _Malformed("its head is damaged")
        read = self._file.read(size)
        if len(read) < size:
            raise _Malformed("it is cut short; fetch it again")
        return read
