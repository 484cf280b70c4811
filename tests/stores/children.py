"""What tests run in a process of its own: a small disk, few rights, a low limit, a real kill.

`run` starts `python -m tests.stores.children NAME DIRECTORY`, which calls the function of that name
in `tests/stores/scenes.py` and prints what it returns.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]

CLONE_NEWNS, CLONE_NEWUSER = 0x00020000, 0x10000000
MS_RDONLY, MS_REMOUNT, MS_REC, MS_PRIVATE = 1, 32, 0x4000, 1 << 18
CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH = 1, 2
CAPABILITY_VERSION_3 = 0x20080522


def command(name: str, directory: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "tests.stores.children", name, str(directory), *arguments]


def run(name: str, directory: Path, *arguments: str) -> dict[str, object]:
    """The result of a scene. One that cannot be played here returns `{"cannot": why}`."""
    done = subprocess.run(
        command(name, directory, *arguments), cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert isinstance(result, dict)
    return result


class CannotMountError(Exception):
    pass


def mount_small_disk(directory: Path, size_bytes: int) -> None:
    """Mounts a file system that this process alone sees and that is gone with it."""
    libc = ctypes.CDLL(None, use_errno=True)
    user = 0 if os.geteuid() == 0 else CLONE_NEWUSER
    options = f"size={size_bytes}".encode()
    if libc.unshare(CLONE_NEWNS | user):
        raise CannotMountError(os.strerror(ctypes.get_errno()))
    # In a chroot "/" is no mount point, and how mounts spread cannot be changed.
    libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None)
    if libc.mount(b"tmpfs", bytes(directory), b"tmpfs", 0, options):
        raise CannotMountError(os.strerror(ctypes.get_errno()))
    if spreads(directory):
        libc.umount(bytes(directory))
        raise CannotMountError("others would see it too")


def spreads(mount_point: Path) -> bool:
    """Whether other mount namespaces see what is mounted here."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields = line.split(" - ")[0].split()
        if fields[4] == str(mount_point):
            return any(field.startswith("shared:") for field in fields[6:])
    raise CannotMountError(f"{mount_point} was mounted and is not listed")


def make_disk_read_only(directory: Path) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"tmpfs", bytes(directory), b"tmpfs", MS_REMOUNT | MS_RDONLY, None):
        raise CannotMountError(os.strerror(ctypes.get_errno()))


def fill_disk(filler: Path) -> None:
    """To the last block."""
    with filler.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 4096)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise


def heed_permissions() -> None:
    """Give up root's right to pass over them."""
    if os.geteuid() != 0:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
    rights = (ctypes.c_uint32 * 6)()
    assert libc.capget(header, rights) == 0
    for place in range(3):
        rights[place] &= ~(1 << CAP_DAC_OVERRIDE | 1 << CAP_DAC_READ_SEARCH)
    assert libc.capset(header, rights) == 0


def limit_file_size(size_bytes: int) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))


def unlimit_file_size() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))


@contextmanager
def no_files_to_open() -> Iterator[None]:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def main() -> None:
    import anyio

    # This module is `__main__` here, and another copy of it is what the scenes import.
    from tests.stores import children, scenes

    name, directory, *arguments = sys.argv[1:]
    scene = getattr(scenes, name)
    try:
        result = anyio.run(scene, Path(directory), *arguments)
    except children.CannotMountError as error:
        result = {"cannot": f"no disk of its own: {error}"}
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
