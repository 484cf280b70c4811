"""Takes and uses the snapshots of one workspace, for callers in an event loop.

A child process does the work, so that the loop never waits for a disk. It runs in a containment
that can see the data directory, and dies with this program. It starts when it is first needed, and
again if it died. Requests go one at a time.

If a request takes longer than its bound, the child is killed and the caller gets an error: either
no file was changed, or the next child finishes the undo. Cancelling a caller ends its wait alone.
"""

import json
import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio

from bargein.cancel import CancelSource
from bargein.checkpoints.repository import Bounds, StageFolder
from bargein.checkpoints.timeline import Stint, Timeline
from bargein.contracts.checkpoint import (
    CheckpointError,
    FileFate,
    FilesUndone,
    FileUndone,
    Span,
)
from bargein.contracts.stage import StagedFate, StagedFile, StagedFiles

if TYPE_CHECKING:
    from bargein.process import Containment, Service

_ANSWER_BYTES_MAX = 4 << 20
_COPY_S = 600.0


class Keeper:
    """`contracts.checkpoint.Checkpoints` of one workspace."""

    def __init__(
        self,
        workspace: str | Path,
        directory: Path,
        containment: Callable[[], Awaitable["Containment | None"]],
        source: CancelSource,
        *,
        bounds: Bounds = Bounds(),  # noqa: B008 - frozen
        request_s: float = 120.0,
        stage: StageFolder | None = None,
        stage_bytes_max: int = 0,
    ) -> None:
        """With a `stage` all snapshots are taken of it, and undone in it."""
        self.workspace = os.path.realpath(workspace)
        self.stage = stage
        self._stage_bytes_max = stage_bytes_max
        self._directory = directory
        self._containment = containment
        self._source = source
        self._bounds = bounds
        self._request_s = request_s
        self._service: Service | None = None
        self._unread = b""
        self._one_at_a_time = anyio.Lock()
        self._is_closed = False
        self._timeline = Timeline()

    async def save(self) -> str:
        return str((await self._request("save"))["id"])

    def work(self) -> "KeptWork":
        return KeptWork(self, self._timeline)

    async def preview(self, spans: Sequence[Span], overrule: Sequence[str] = ()) -> FilesUndone:
        return _read(await self._request("preview", spans=_pairs(spans), overrule=list(overrule)))

    async def undo(self, spans: Sequence[Span], overrule: Sequence[str] = ()) -> FilesUndone:
        with anyio.CancelScope(shield=True):
            answer = await self._request("undo", spans=_pairs(spans), overrule=list(overrule))
        return _read(answer)

    async def diff(self, spans: Sequence[Span]) -> str:
        return str((await self._request("diff", spans=_pairs(spans)))["diff"])

    async def tidy(self, *, keep_s: float, bytes_max: int) -> int:
        """Drops what is older, or more than fits. Returns how many bytes are held."""
        answer = await self._request("tidy", keep_s=keep_s, bytes_max=bytes_max)
        return int(answer["held_bytes"])

    # `contracts.stage.SessionStage`

    async def open_stage(self) -> bool:
        """Makes the stage if there is none. Returns whether it was made."""
        answer = await self._request("stage open", within_s=_COPY_S, copying=self._copying())
        return bool(answer["made"])

    async def look(self) -> StagedFiles:
        return _staged(await self._request("stage look"))

    async def accept(self, paths: Sequence[str] = (), overrule: Sequence[str] = ()) -> StagedFiles:
        with anyio.CancelScope(shield=True):
            answer = await self._request("stage accept", paths=list(paths), overrule=list(overrule))
        return _staged(answer)

    async def take_back(self, span: Span) -> StagedFiles:
        with anyio.CancelScope(shield=True):
            answer = await self._request("stage take back", span=[span.before, span.after])
        return _staged(answer)

    async def discard(self, paths: Sequence[str]) -> StagedFiles:
        with anyio.CancelScope(shield=True):
            answer = await self._request("stage discard", paths=list(paths))
        return _staged(answer)

    async def begin_anew(self) -> None:
        with anyio.CancelScope(shield=True):
            await self._request("stage make", within_s=_COPY_S, copying=self._copying())

    async def refresh(self) -> int:
        # A stop does not wait for it: the next request finishes what was begun.
        return int((await self._request("stage refresh"))["changed"])

    async def drop(self) -> None:
        with anyio.CancelScope(shield=True):
            await self._request("stage drop", within_s=_COPY_S)

    def _copying(self) -> dict[str, object]:
        return {"bytes_max": self._stage_bytes_max, "left_out": str(self._directory.parent)}

    async def aclose(self) -> None:
        """Ends the child. What still asks for something gets an error, and starts no other."""
        self._is_closed = True
        await self._end_child()

    async def _end_child(self) -> None:
        service, self._service = self._service, None
        if service is not None:
            await service.stop()

    async def _request(
        self, what: str, *, within_s: float | None = None, **more: object
    ) -> dict[str, Any]:
        within_s = max(within_s or 0.0, self._request_s)
        request = {
            "do": what,
            "workspace": self.workspace,
            "directory": str(self._directory),
            "bounds": asdict(self._bounds),
            "stage": (self.stage.name, self.stage.tree) if self.stage is not None else None,
            **more,
        }
        async with self._one_at_a_time:
            answered = False
            try:
                with anyio.fail_after(within_s):
                    line = await self._exchange(json.dumps(request).encode() + b"\n")
                answered = True
            except TimeoutError:
                raise CheckpointError(
                    f"the snapshots of {self.workspace} took more than {within_s:g} s"
                ) from None
            finally:
                if not answered:
                    # Its answer would be taken for that of the next request.
                    with anyio.CancelScope(shield=True):
                        await self._end_child()
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise CheckpointError(answer["error"])
        return answer

    async def _exchange(self, line: bytes) -> bytes:
        from bargein.process import InputClosed, SpawnError

        try:
            service = await self._started()
            await service.write(line)
            while b"\n" not in self._unread:
                piece = await service.read()
                if not piece:
                    words = service.errors.text().strip()[-400:]
                    raise CheckpointError(f"the process of the snapshots ended: {words}")
                self._unread += piece
                if len(self._unread) > _ANSWER_BYTES_MAX:
                    raise CheckpointError("the process of the snapshots said too much")
        except (InputClosed, SpawnError) as error:
            raise CheckpointError(f"the process of the snapshots: {error}") from error
        answer, _, self._unread = self._unread.partition(b"\n")
        return answer

    async def _started(self) -> "Service":
        self._refuse_if_closed()
        if self._service is None or self._service.exit is not None:
            containment = await self._containment()
            if containment is None:
                raise CheckpointError("there is no containment for the process of the snapshots")
            program = Path(__file__).with_name("child.py")
            self._unread = b""
            self._service = await containment.start_service(
                [sys.executable, "-I", "-S", "-B", "-X", "utf8", str(program)],
                cwd="/",
                env=_environment(),
                token=self._source.token,
            )
            # If it was closed meanwhile, the failed request ends the child.
            self._refuse_if_closed()
        return self._service

    def _refuse_if_closed(self) -> None:
        if self._is_closed:
            raise CheckpointError(f"the snapshots of {self.workspace} are closed")


class KeptWork:
    """`contracts.checkpoint.FolderWork`: with a snapshot on both sides."""

    def __init__(self, keeper: Keeper, timeline: Timeline) -> None:
        self._keeper = keeper
        self._timeline = timeline
        self._work = Stint()

    async def begins(self) -> None:
        snapshot: str | None = None
        try:
            snapshot = await self._keeper.save()
        finally:
            self._timeline.begins(self._work, snapshot)

    async def ends(self) -> tuple[Span, ...]:
        snapshot: str | None = None
        try:
            snapshot = await self._keeper.save() if self._work.since is not None else None
        finally:
            spans = self._timeline.ends(self._work, snapshot)
        return spans


def _environment() -> dict[str, str]:
    import os

    names = ("PATH", "HOME", "XDG_CONFIG_HOME")
    return {name: os.environ[name] for name in names if name in os.environ}


def _pairs(spans: Sequence[Span]) -> list[tuple[str, str, bool]]:
    return [(span.before, span.after, span.shared) for span in spans]


def _read(answer: dict[str, Any]) -> FilesUndone:
    files = tuple(FileUndone(path, FileFate(fate), why) for path, fate, why in answer["files"])
    span = Span(*answer["span"]) if answer["span"] else None
    return FilesUndone(files, answer["more"], span)


def _staged(answer: dict[str, Any]) -> StagedFiles:
    files = tuple(StagedFile(path, StagedFate(fate), why) for path, fate, why in answer["files"])
    span = Span(*answer["span"]) if answer["span"] else None
    return StagedFiles(files, answer["more"], answer.get("diff", ""), span)
