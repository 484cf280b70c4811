"""The process that takes snapshots: `python -I -S child.py`, started by `keeper.py`.

Run as a file, not imported. It reads one request a line from standard input, and answers each with
one line. It ends with its input. Requests and answers are JSON; a path is text with backslashes
where it is no text.
"""

import json
import os
import sys
from importlib.util import module_from_spec, spec_from_file_location
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bargein.checkpoints.plan import Interval, UndoPlan
    from bargein.checkpoints.repository import Repository, StageFolder
    from bargein.checkpoints.staging import StageOutcome

SpanAsked = tuple[str, str, bool]
NAMED_MAX = 500
DIFF_BYTES_MAX = 1 << 20


def _load_package() -> None:
    """Loads the package from where this file is, wherever the interpreter's path leads."""
    package = os.path.join(
        os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "__init__.py"
    )
    spec = spec_from_file_location("bargein", package)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["bargein"] = module_from_spec(spec)
    spec.loader.exec_module(module)


def shown(path: bytes) -> str:
    return path.decode(errors="backslashreplace")


def main() -> None:
    _load_package()
    from bargein.checkpoints.repository import CheckpointFailed

    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = _answer(request)
        except CheckpointFailed as error:
            answer = {"error": str(error)}
        except OSError as error:
            answer = {"error": f"{error.filename or 'a file'}: {error.strerror}"}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    from pathlib import Path

    from bargein.checkpoints.repository import Bounds, Repository, StageFolder
    from bargein.checkpoints.restore import recover
    from bargein.checkpoints.retention import tidy
    from bargein.checkpoints.snapshot import take

    directory = Path(request["directory"])
    if request["do"] == "tidy":
        held = tidy(directory, keep_s=request["keep_s"], bytes_max=request["bytes_max"])
        return {"held_bytes": held}
    bounds = Bounds(**request["bounds"])
    with Repository.open(directory, request["workspace"], bounds=bounds) as repository:
        recover(repository)
        if request["stage"] is not None:
            stage = StageFolder(*request["stage"])
            if request["do"].startswith("stage "):
                return _answer_about_stage(repository, stage, request)
            repository = repository.over(stage)  # noqa: PLW2901 - closed with the other
            recover(repository)
        match request["do"]:
            case "save":
                return {"id": take(repository).id}
            case "preview" | "undo":
                return _undo(repository, request)
            case "diff":
                return {"diff": _diff(repository, request["spans"])}
            case other:
                return {"error": f"no such request: {other}"}


def _answer_about_stage(
    repository: "Repository", stage: "StageFolder", request: dict[str, Any]
) -> dict[str, Any]:
    from bargein.checkpoints.restore import recover
    from bargein.checkpoints.snapshot import read
    from bargein.checkpoints.staging import StagedCopy

    files = StagedCopy(repository, stage)
    if os.path.isdir(stage.tree):
        recover(repository.over(stage))
    copying = request.get("copying", {})
    paths = request.get("paths", ())
    match request["do"]:
        case "stage open":
            return {"made": files.open(**copying)}
        case "stage make":
            files.make(**copying)
            return {}
        case "stage drop":
            files.drop()
            return {}
        case "stage refresh":
            return {"changed": files.refresh()}
        case "stage look":
            seen = files.look()
            return {**_outcome(seen), "diff": _diff_of_trees(repository, seen.before, seen.after)}
        case "stage accept":
            return _outcome(files.accept(paths, request["overrule"]))
        case "stage discard":
            return _outcome(files.discard(paths))
        case "stage take back":
            before, after = (read(repository, name) for name in request["span"])
            return _outcome(files.take_back(before, after))
        case other:
            return {"error": f"no such request: {other}"}


def _outcome(outcome: "StageOutcome") -> dict[str, Any]:
    files: list[tuple[str, str, str]] = []
    for step in outcome.plan.steps:
        how = ("changed" if step.seen else "added") if step.wanted else "removed"
        files.append((shown(step.path), how, ""))
    named = {path for path, _, _ in files}
    folders = [(shown(path), "added", "") for path, _ in outcome.plan.make]
    folders += [(shown(path), "removed", "") for path in outcome.plan.remove]
    folders += [(shown(each.path), "changed", "") for each in outcome.plan.modes]
    # A folder is named if nothing in it is.
    files += [
        (f"{path}/", how, why)
        for path, how, why in folders
        if not any(each.startswith(f"{path}/") for each in named)
    ]
    files += [(shown(path), "kept", why) for path, why in outcome.kept]
    files.sort(key=lambda each: (each[1] != "kept", each[0]))
    span = [outcome.before, outcome.after] if outcome.before != outcome.after else None
    return {"files": files[:NAMED_MAX], "more": max(len(files) - NAMED_MAX, 0), "span": span}


def _undo(repository: "Repository", request: dict[str, Any]) -> dict[str, Any]:
    from bargein.checkpoints.plan import after_undo, plan_undo
    from bargein.checkpoints.restore import restore
    from bargein.checkpoints.snapshot import take

    now = take(repository)
    intervals = _intervals(repository, request["spans"])
    shared = [
        interval for interval, span in zip(intervals, request["spans"], strict=True) if span[2]
    ]
    plan = plan_undo(repository, intervals, now, shared=shared)
    overrule = [path for path, _ in plan.kept if shown(path) in set(request["overrule"])]
    if overrule:
        plan = plan_undo(repository, intervals, now, shared=shared, overrule=overrule)
    if request["do"] == "preview" or plan.is_empty:
        return _told(plan, None, {})
    done = restore(repository, plan)
    after = after_undo(repository, now, plan, done.changed)
    span = [now.id, after.id] if now.id != after.id else None
    return _told(plan, span, dict(done.kept))


def _told(plan: "UndoPlan", span: list[str] | None, late: dict[bytes, str]) -> dict[str, Any]:
    """Says what becomes of each path. `late` are those that could not be changed after all."""
    files: list[tuple[str, str, str]] = []
    for step in plan.steps:
        if step.path not in late:
            how = "changed back" if step.seen else "brought back"
            files.append((shown(step.path), how if step.wanted else "removed", ""))
    kept = {path: str(why) for path, why in plan.kept} | late
    files += [(shown(path), "kept", why) for path, why in kept.items()]
    # What is kept is what people must see: it comes first if not all are named.
    files.sort(key=lambda each: (each[1] != "kept", each[0]))
    return {"files": files[:NAMED_MAX], "more": max(len(files) - NAMED_MAX, 0), "span": span}


def _intervals(repository: "Repository", spans: list[SpanAsked]) -> "list[Interval]":
    from bargein.checkpoints.snapshot import read

    known = {
        name: read(repository, name) for name in {each for b, a, _ in spans for each in (b, a)}
    }
    return [(known[before], known[after]) for before, after, _ in spans]


def _diff(repository: "Repository", spans: list[SpanAsked]) -> str:
    """One after the other: what others changed in between is not shown."""
    whole = b""
    for before, after, _ in spans:
        whole += _trees_differ(repository, f"{before}:files", f"{after}:files")
        if len(whole) > DIFF_BYTES_MAX:
            break
    return _bounded(whole)


def _diff_of_trees(repository: "Repository", before: str, after: str) -> str:
    return _bounded(_trees_differ(repository, before, after))


def _trees_differ(repository: "Repository", before: str, after: str) -> bytes:
    options = ("-r", "-p", "--no-ext-diff", "--no-textconv")
    return repository.git("diff-tree", *options, before, after)


def _bounded(whole: bytes) -> str:
    if len(whole) > DIFF_BYTES_MAX:
        cut = whole[:DIFF_BYTES_MAX].rpartition(b"\n")[0]
        return cut.decode(errors="backslashreplace") + "\n(the rest is not shown)\n"
    return whole.decode(errors="backslashreplace")


if __name__ == "__main__":
    main()
