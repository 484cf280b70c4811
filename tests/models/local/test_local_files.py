"""The user's own files: which are models, which are not, and what the errors say."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest

from bargein.models.local import LocalModel, ModelFileError
from bargein.models.local.gguf import GgufHeader, read_head
from bargein.models.settings import ModelSettings
from tests.models.local.files import HEAD, entry, gguf_head

VOCABULARY = entry("tokenizer.ggml.tokens", ["a", "b", "longer"])


def write(folder: Path, content: bytes) -> Path:
    path = folder / "model.gguf"
    path.write_bytes(content)
    return path


def test_a_head_is_read_in_whatever_order(tmp_path: Path) -> None:
    known = (entry("general.architecture", "qwen"), entry("qwen.context_length", 32768))
    for entries in (known, known[::-1], (VOCABULARY, *known), (entry("x.y", 7), *known)):
        assert read_head(write(tmp_path, gguf_head(*entries))) == GgufHeader("qwen", 32768)
    only_name = gguf_head(entry("general.architecture", "qwen"), VOCABULARY)
    assert read_head(write(tmp_path, only_name)) == GgufHeader("qwen", None)


def test_the_head_of_the_embedded_model(weights_dir: Path) -> None:
    (path,) = weights_dir.glob("*.gguf")
    assert read_head(path) == GgufHeader("llama", 8192)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "not in the GGUF format"),
        (b"PK\3\4 a zip file", "not in the GGUF format"),
        (b"GGUF\3\0\0\0", "cut short"),
        (HEAD[:-6], "cut short"),
        (gguf_head(entry("a", "b"), version=1), "version is 1"),
        (gguf_head(entry("general.architecture", "x"), tensors=0), "no weights"),
        (gguf_head(entry("a", "b")), "which architecture"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1, 1 << 60), "damaged"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 1, 1, 1 << 60), "damaged"),
        (gguf_head(b"\1\0\0\0\0\0\0\0a" + struct.pack("<IIQ", 9, 8, 1 << 60)), "damaged"),
        (gguf_head(b"\1\0\0\0\0\0\0\0a" + struct.pack("<IIQ", 9, 9, 1)), "damaged"),
        (gguf_head(b"\1\0\0\0\0\0\0\0a" + struct.pack("<I", 77)), "damaged"),
    ],
)
def test_what_is_not_a_model_is_told_apart(tmp_path: Path, content: bytes, told: str) -> None:
    path = write(tmp_path, content)
    with pytest.raises(ModelFileError) as caught:
        LocalModel(path=str(path))
    message = str(caught.value)
    assert told in message
    assert str(path) in message
    assert "BARGEIN_MODEL=local:PATH.gguf" in message


def test_what_is_not_a_file(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="it does not exist"):
        LocalModel(path=str(tmp_path / "missing.gguf"))
    with pytest.raises(ModelFileError, match="it is a folder"):
        LocalModel(path=str(tmp_path))
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(ModelFileError, match="not a plain file"):
        LocalModel(path=str(pipe))


def test_how_much_it_reads_is_the_least_of_what_it_can_what_is_set_and_what_fits(
    tmp_path: Path,
) -> None:
    def context_tokens(of_model: int, setting: int | None) -> int | None:
        head = gguf_head(entry("general.architecture", "x"), entry("x.context_length", of_model))
        settings = ModelSettings(context_tokens=setting)
        return LocalModel(settings, path=str(write(tmp_path, head))).context_tokens

    assert context_tokens(131_072, None) == 8192
    assert context_tokens(2048, None) == 2048
    assert context_tokens(131_072, 16_384) == 16_384
    assert context_tokens(2048, 16_384) == 2048
    assert LocalModel().context_tokens == 8192
    assert LocalModel(ModelSettings(context_tokens=1024)).context_tokens == 1024
