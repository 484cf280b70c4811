"""The user's approval of what a project's files ask for.

A repository may come from anywhere, and its author must not decide for the user. Settings that only
tighten take effect at once. The rest (settings; servers, hooks and commands in the same way) waits
for the user's approval, which holds for exactly what was shown: if any of it changes, the user is
asked again.

How a kind of file uses this:

1. Read the file once, and make a `TrustRequest` of what was read: everything that would take
   effect, each effect in a text of its own, with names of variables as they are written and never
   their values. `scripts_named` adds the files of the project that a command names.
2. Use what was read if `Trust.is_approved(request)`. Do not read the file again in between. For
   something used later or more than once, make a new request at each use, because the agent can
   write to the workspace.
3. If it is not approved, leave it out and go on. The terminal asks before its first prompt; every
   other run says in one line what is left out and which command approves it
   (`cli.trusting.waiting` collects the requests).

Verdicts are in `trust.json` in the user's config directory, by the project's real path, never in
the workspace. Commands do not see that directory, and file tools refuse it. A file that cannot be
read approves nothing.
"""

import hashlib
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Protocol

from bargein.contracts.value import Value
from bargein.contracts.visible import visible
from bargein.errors import UserError
from bargein.stores.user_file import UserFile

FILE = "trust.json"
SHOWN_CHARACTERS_MAX = 30_000
VERDICTS_MAX = 50
"""How many verdicts are kept for a project. Over it, the oldest is forgotten."""
SCRIPTS_MAX = 50
SCRIPT_BYTES_MAX = 16 << 20
ID_CHARACTERS = 8

_STARTED = ("__main__.py", "index.js", "index.mjs", "package.json", "pyproject.toml")
_BETWEEN = re.compile(r"[\s;&|()<>\"'`=,]+")


class NamedScript(Value, frozen=True):
    """A file of the project that a command names, by its path in the project, and the SHA-256 of
    its content."""

    path: str
    sha256: str


class TrustRequest(Value, frozen=True):
    """What one file of a project asks for. `kind` is a word or two, such as `settings`. `source`
    is the file, `project` the real path of its folder."""

    kind: str
    project: str
    source: str
    effects: tuple[str, ...]
    variables: tuple[str, ...] = ()
    scripts: tuple[NamedScript, ...] = ()

    @property
    def digest(self) -> str:
        """The hash of everything that would take effect, as it is and not as it is shown."""
        scripts = (part for each in self.scripts for part in (each.path, each.sha256))
        digest = hashlib.sha256()
        for group in ((self.kind, self.source), self.effects, self.variables, scripts):
            texts = [text.encode("utf-8", "surrogatepass") for text in group]
            digest.update(len(texts).to_bytes(8))
            for text in texts:
                digest.update(len(text).to_bytes(8) + text)
        return digest.hexdigest()

    @property
    def id(self) -> str:
        return self.digest[:ID_CHARACTERS]

    def shown(self) -> str:
        """Returns all of it in words for the user. The later lines of an effect are indented, so
        that they do not look like an effect of their own."""
        lines = [f"{self.kind} in {self.source}", *self._effects()]
        return "\n".join(visible(line) for line in lines)

    def _effects(self) -> Iterator[str]:
        for effect in self.effects:
            first, *rest = effect.split("\n")
            yield f"  {first}"
            yield from (f"      {line}" for line in rest)
        for name in self.variables:
            yield f"  reads ${name} from your environment"
        for script in self.scripts:
            yield f"  runs {script.path}, as it is now (sha256 {script.sha256[:16]})"


class Trust(Protocol):
    """Asked by the readers of a project's files. Quick, and safe to call in the loop."""

    def is_approved(self, request: TrustRequest) -> bool: ...


class KeptVerdict(Value, frozen=True):
    """The user's verdict on a request, by its digest."""

    kind: str
    source: str
    digest: str
    approved: bool
    at: float

    @property
    def id(self) -> str:
        return self.digest[:ID_CHARACTERS]


Verdicts = dict[str, tuple[KeptVerdict, ...]]


class TrustFile:
    """The user's verdicts on all projects: a `Trust`."""

    def __init__(self, path: Path, *, now: Callable[[], float] = time.time) -> None:
        self.path = path
        self._now = now
        self._file: UserFile[Verdicts] = UserFile(
            path, Verdicts, {}, mends="repair it, or delete it to be asked again"
        )

    def is_approved(self, request: TrustRequest) -> bool:
        return self.verdict(request) is True

    def verdict(self, request: TrustRequest) -> bool | None:
        """Returns whether the user approved exactly this, or None without a verdict."""
        try:
            kept = self.verdicts().get(request.project, ())
        except UserError:
            return None
        digest = request.digest
        return next((each.approved for each in kept if each.digest == digest), None)

    def verdicts(self) -> Verdicts:
        """Returns the verdicts by project. Raises `UserError` if the file cannot be read."""
        return self._file.read()

    def judge(self, request: TrustRequest, *, approved: bool) -> None:
        """Keeps the user's verdict. Only for a person who has read `request.shown()`."""
        size = len(request.shown())
        if approved and size > SHOWN_CHARACTERS_MAX:
            raise UserError(
                f"{request.source} asks for more than people read: {size} characters, and at "
                f"most {SHOWN_CHARACTERS_MAX} can be approved; put it into your own file instead"
            )
        said = KeptVerdict(request.kind, request.source, request.digest, approved, self._now())

        def kept(verdicts: Verdicts) -> Verdicts:
            before = verdicts.get(request.project, ())
            others = tuple(each for each in before if each.digest != said.digest)
            return {**verdicts, request.project: (*others, said)[-VERDICTS_MAX:]}

        self._file.change(kept)

    def revoke(self, verdict_id: str) -> bool:
        """Forgets a verdict, so that the user is asked again. Returns False if there is none."""

        def left(verdicts: Verdicts) -> Verdicts:
            kept = {
                project: tuple(each for each in those if each.id != verdict_id)
                for project, those in verdicts.items()
            }
            return {project: those for project, those in kept.items() if those}

        return self._file.change(left)


def scripts_named(
    project: Path, words: Iterable[str], *, starts_in: str = ""
) -> tuple[NamedScript, ...]:
    """Returns the files inside `project` that a command names, each with its content's hash. The
    command starts in `starts_in`, a folder of the project.

    Files that these start in turn are not followed. Raises `UserError` if there are too many,
    or one is too large.
    """
    root = os.path.realpath(project)
    found: dict[str, NamedScript] = {}
    for word in words:
        for path in _paths(root, starts_in, word):
            inside = os.path.relpath(path, root)
            if inside not in found:
                found[inside] = NamedScript(inside, _sha256(path))
        if len(found) > SCRIPTS_MAX:
            raise UserError(f"{root}: a command names more than {SCRIPTS_MAX} files of the project")
    return tuple(found[name] for name in sorted(found))


def _paths(root: str, starts_in: str, word: str) -> Iterator[str]:
    """The files below `root` that a word may mean; of a folder, those that programs start."""
    for name in dict.fromkeys((word, *_BETWEEN.split(word))):
        for folder in dict.fromkeys((root, os.path.join(root, starts_in))):
            path = os.path.realpath(os.path.join(folder, name)) if name else root
            for each in (path, *(os.path.realpath(os.path.join(path, it)) for it in _STARTED)):
                is_below = each.startswith(f"{root}{os.sep}") and path != root
                if is_below and os.path.isfile(each):
                    yield each


def _sha256(path: str) -> str:
    try:
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_size > SCRIPT_BYTES_MAX:
                raise UserError(f"{path} is larger than {SCRIPT_BYTES_MAX} bytes; do not name it")
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error
