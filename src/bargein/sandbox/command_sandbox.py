"""The sandbox of one workspace: where its commands run, and what each may touch.

A command can write to the workspace and to a /tmp of its session. Everything else is read-only,
secrets and the sockets of services are hidden, and there is no network unless it is allowed.
`docs/sandbox.md` says what holds by which means. Called on the loop.
"""

import hashlib
import os
import sys
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from bargein.process import Containment, SandboxReport, SandboxView
from bargein.process.helper.syscalls import landlock_version
from bargein.sandbox.host_proxy import proxy_variables
from bargein.sandbox.planted import PlantWatch
from bargein.sandbox.protected_paths import git_folders, hidden_paths, shown_in_run

_OWN_SETTINGS: Final = ("bargein.toml", ".mcp.json")
_TEMPORARY: Final = ("/tmp", "/var/tmp")
_TOLD: Final = 5
_NAME_CHARS_MAX: Final = 80
# The first version of Landlock that keeps abstract sockets out of reach, in Linux 6.12.
_SCOPED: Final = 6
_ASK: Final = " To make a submodule or git hooks, use outside=true: the user is asked."
_COULD: Final = "the command could write only to the workspace and /tmp, saw no secrets"
_SIGNS: Final = (
    "read-only file system",
    "permission denied",
    "operation not permitted",
    "network is unreachable",
    "could not resolve",
    "temporary failure in name resolution",
    "name or service not known",
    "connection refused",
    "device or resource busy",
    "address family not supported",
    "eacces",
    "erofs",
    "enotfound",
    "eai_again",
)


class SandboxSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`writable` and `hidden` are further paths that commands may write to or must not see.
    `sealed`: nobody can allow a command to leave it, and without one that holds there are none."""

    writable: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    sealed: bool = False


class CommandSandbox:
    """`containment` closes its commands in, if it can. `folder` holds the sessions' /tmp."""

    def __init__(
        self,
        containment: Containment,
        workspace: str,
        folder: Path,
        environment: Mapping[str, str],
        settings: SandboxSettings = SandboxSettings(),  # noqa: B008 - frozen
        hidden: Iterable[str] = (),
        door: str = "",
        stage: str = "",
    ) -> None:
        """`hidden` are directories that the containment hides from every command anyway. `door` is
        that of a `HostProxy`, if there is one. `stage` is a folder that commands see in place of
        the workspace; then they see its repository read only, and none may leave the sandbox."""
        self._door = door
        self._stage = os.path.realpath(stage) if stage else ""
        self.containment = containment
        self._folder = folder
        self._workspace = os.path.realpath(workspace)
        git = git_folders(self._workspace)
        self._doubt = git.doubt
        self._git_writable = () if stage else git.writable
        self._more = [os.path.realpath(os.path.expanduser(path)) for path in settings.writable]
        self.sealed = settings.sealed or bool(stage)
        self._has_own_home = settings.sealed
        own = tuple(os.path.join(self._workspace, name) for name in _OWN_SETTINGS)
        repository = (os.path.join(self._workspace, ".git"),) if stage else ()
        self._protected = (*repository, *git.protected, *own, *shown_in_run())
        known = hidden_paths(environment, settings.hidden, self._workspace)
        self._hidden = tuple(dict.fromkeys([*known, *hidden]))
        self._protected += _needed_in((*self._hidden, *map(os.path.realpath, _TEMPORARY)))
        self._home = os.path.realpath(environment.get("HOME") or "/")
        self._plants = PlantWatch(git.repository, git.watched)
        self._untold: list[str] = []

    @property
    def _writable(self) -> tuple[str, ...]:
        """A mount takes a folder that is there; one that is made later counts from then on."""
        existing = [path for path in self._more if os.path.isdir(path)]
        return tuple(dict.fromkeys([self._workspace, *self._git_writable, *existing]))

    @property
    def report(self) -> SandboxReport:
        return self.containment.report.sandbox

    @property
    def why_not(self) -> str:
        """Why commands need approval in spite of the sandbox; empty if it holds."""
        if not self.report.means:
            return f"it runs without a sandbox: {self.report.detail or 'none works here'}"
        if not self.report.holds:
            return (
                "the sandbox does not hold everything here: by Landlock alone, git's hooks and "
                "processes outside are within reach"
            )
        if self.report.network == "all" and landlock_version() < _SCOPED:
            return "with the machine's network, this kernel lets commands reach abstract sockets"
        if self._doubt and not self._stage:
            return f"the sandbox cannot protect git's hooks and configuration: {self._doubt}"
        # Of a workspace that is staged, commands write to a copy.
        for folder in self._more if self._stage else self._writable:
            if f"{self._home}/".startswith(f"{folder}/".replace("//", "/")):
                return f"{folder} holds your whole home directory, where every program has settings"
        return ""

    def begin(self) -> None:
        """A command is about to start in this sandbox. Call `end` once it is over."""
        self._plants.begin()

    def end(self) -> None:
        self._untold += self._plants.end()

    def set_aside(self) -> str:
        """Return a note about files that commands planted for the user's git; empty if none."""
        if not self._untold:
            return ""
        paths = ", ".join(os.path.relpath(path, self._workspace) for path in self._untold[:_TOLD])
        more = f" and {len(self._untold) - _TOLD} more" if len(self._untold) > _TOLD else ""
        self._untold.clear()
        return (
            f"\n[sandbox: the user's next git command would have run programs from here, so it "
            f"was renamed: {paths}{more}.{'' if self.sealed else _ASK}]"
        )

    def view(
        self, session_id: str, *, read_only: bool = False, besides: Iterable[str] = ()
    ) -> SandboxView | None:
        """What a command of this session may touch, and the folders `besides`. None if there is no
        sandbox here."""
        if not self.report.means:
            return None
        return SandboxView(
            self._tmp_of(session_id),
            (*self._writable, *besides),
            self._protected,
            self._hidden,
            read_only,
            self._door,
            (self._workspace, self._stage) if self._stage else None,
            self.containment.report.limits.limits.tmp_bytes or 0,
        )

    def environment(self, view: SandboxView) -> dict[str, str]:
        """Variables that a command in this view gets."""
        variables = {"TMPDIR": "/tmp" if self.report.holds else view.tmp}
        if self._door and self.report.holds:
            variables |= proxy_variables()
        return {**variables, "HOME": self._workspace} if self._has_own_home else variables

    def _tmp_of(self, session_id: str) -> str:
        """One for a session and its sub-agents, kept until the program ends."""
        root = session_id.partition("/")[0].encode()
        name = root.hex() or "none"
        if len(name) > _NAME_CHARS_MAX:
            # Of a thread in a chat, say: where the names differ may be far behind.
            name = hashlib.sha256(root).hexdigest()
        folder = self._folder / name
        with suppress(FileExistsError):
            folder.mkdir()
            folder.chmod(0o1777)
        return str(folder)

    def hint(self, output: str) -> str:
        """Return a note for a failed command if the sandbox may be the reason; else empty."""
        low = output[-20_000:].lower()
        if not any(sign in low for sign in _SIGNS):
            return ""
        reached = "only the hosts of sandbox.hosts" if self._door else "no network"
        network = "" if self.report.network == "all" else f", and reached {reached}"
        if self._stage:
            return (
                f"\n[sandbox: {_COULD}{network}. It ran in a copy of the workspace, whose changes "
                "the user accepts or discards; git's own folder is read only there.]"
            )
        if self.sealed:
            return f"\n[sandbox: {_COULD}{network}. Nobody can change that here.]"
        return (
            f"\n[sandbox: {_COULD}{network}. If that is why it failed, and the task needs it, "
            "call again with outside=true: the user is asked to allow it to leave the sandbox. The "
            "user can also set sandbox.hosts, sandbox.network or sandbox.writable.]"
        )


def _needed_in(covered: tuple[str, ...]) -> tuple[str, ...]:
    """Returns what our own interpreter needs of what lies below a covered folder."""
    package = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
    ours = [os.path.realpath(path) for path in (sys.prefix, sys.base_prefix, package)]
    below = [path for path in ours if any(path.startswith(f"{each}/") for each in covered)]
    return tuple(dict.fromkeys(below))


def temporary_folder() -> "tempfile.TemporaryDirectory[str]":
    """For `CommandSandbox.folder`: nobody else can enter it; the folders in it anybody could. Its
    path has no links, because a sandbox opens it without following any."""
    return tempfile.TemporaryDirectory(
        prefix="bargein-sandbox-",
        dir=os.path.realpath(tempfile.gettempdir()),
        ignore_cleanup_errors=True,
    )
