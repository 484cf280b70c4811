"""Finds the paths that a sandbox hides, and those that it protects inside a workspace.

Hidden are folders and files that hold secrets, and sockets through which another program would act
for a command. Protected are files in a workspace that make the user's own programs run something:
git's hooks and configuration, and our own settings. Nothing here changes anything; any thread.
"""

import os
import pwd
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

from bargein.sandbox.git_settings import settings_in
from bargein.sandbox.gitlinks import LINKS_MAX, gitlinks, read_small

_SECRETS: Final = (
    *(".ssh", ".aws", ".gnupg", ".azure", ".kube", ".docker", ".oci", ".terraform.d", ".chef"),
    *(".config/gcloud", ".config/gh", ".config/glab-cli", ".config/hub", ".config/op"),
    *(".config/rclone", ".config/doctl", ".config/heroku", ".config/fly", ".fly", ".wrangler"),
    *(".password-store", ".local/share/keyrings", ".local/share/kwalletd", ".gnome2/keyrings"),
    *(".mozilla", ".thunderbird", ".config/google-chrome", ".config/chromium", ".config/Signal"),
    *(".config/BraveSoftware", ".config/microsoft-edge", ".config/Slack", ".config/discord"),
    *(".netrc", ".git-credentials", ".config/git/credentials", ".pgpass", ".my.cnf", ".npmrc"),
    *(".pypirc", ".cargo/credentials", ".cargo/credentials.toml", ".gem/credentials"),
    *(".m2/settings.xml", ".gradle/gradle.properties", ".vault-token", ".boto", ".s3cfg"),
    *(".claude", ".claude.json", ".codex", ".gemini", ".config/github-copilot", ".Xauthority"),
    *(".bash_history", ".zsh_history", ".python_history", ".psql_history", ".node_repl_history"),
    *(".sqlite_history", ".local/share/fish/fish_history", ".mysql_history", ".rediscli_history"),
)
_SECRETS_OF_THE_SYSTEM: Final = (
    *("/etc/shadow", "/etc/shadow-", "/etc/gshadow", "/etc/gshadow-", "/etc/ssl/private"),
    *("/etc/ssh", "/etc/sudoers", "/etc/sudoers.d", "/etc/krb5.keytab", "/etc/wireguard"),
    *("/sys/kernel/debug", "/sys/kernel/tracing", "/sys/kernel/security", "/sys/fs/bpf"),
    *("/sys/firmware", "/var/lib/docker", "/var/lib/containerd"),
)
# Sockets of the system's and the user's services: a container engine, D-Bus, systemd, agents of
# keys. Some of what is there has no sockets, and programs need it.
_SOCKETS: Final = ("/run", "/var/run")
_NEEDED_IN_RUN: Final = (
    *("/run/systemd/resolve", "/run/resolvconf", "/run/NetworkManager/resolv.conf"),
    *("/run/current-system", "/run/booted-system", "/run/wrappers", "/run/opengl-driver"),
)
_IN_GIT: Final = ("hooks", "config", "config.worktree", "commondir", "gitdir")
_MODULES_MAX: Final = 64
_DEPTH_MAX: Final = 4
_FOLDERS_MAX: Final = 3000
_NOT_SEARCHED: Final = ("node_modules", ".venv", "venv", "__pycache__", ".tox", "target")
_CONFIGURATIONS_MAX: Final = 32
_USERS_FROM: Final = 1000
_USERS_MAX: Final = 200


class UsersRepository(NamedTuple):
    """`top` has the working tree, `git` its index, `common` its configuration."""

    top: str
    git: str
    common: str


class GitFolders(NamedTuple):
    """`writable`: where commits of a workspace go, if that is outside of it. `protected`: what
    makes git run programs. `watched`: those of repositories that are there already; where there is
    nothing, or a link, no mount can protect them (see `planted`). `doubt` says what cannot be
    protected at all."""

    writable: tuple[str, ...] = ()
    protected: tuple[str, ...] = ()
    watched: tuple[str, ...] = ()
    repository: UsersRepository | None = None
    doubt: str = ""


def hidden_paths(
    environment: Mapping[str, str], more: Iterable[str] = (), workspace: str = "/"
) -> tuple[str, ...]:
    """Whether they exist or not: some may be made later. Relative ones are in the workspace."""
    home = environment.get("HOME") or os.path.expanduser("~")
    own = [os.path.join(home, name) for name in _SECRETS] if home not in ("", "/") else []
    runtime = environment.get("XDG_RUNTIME_DIR")
    agents = [environment.get(name, "") for name in ("SSH_AUTH_SOCK", "GPG_AGENT_INFO")]
    given = [os.path.join(workspace, os.path.expanduser(path)) for path in more]
    sockets = [path for path in _SOCKETS if not os.path.islink(path)]
    others = _of_other_users(home, workspace) if os.geteuid() == 0 else ()
    found = (*own, *others, *_SECRETS_OF_THE_SYSTEM, *sockets, runtime or "", *agents, *given)
    return tuple(dict.fromkeys(path for path in found if path.startswith("/")))


def _of_other_users(home: str, workspace: str) -> Iterator[str]:
    """Root could read what belongs to others: their homes, or, where we are in one, its secrets."""
    needed = [os.path.realpath(path) for path in (workspace, home, sys.prefix, sys.base_prefix)]
    people = (each for each in pwd.getpwall() if each.pw_uid >= _USERS_FROM or each.pw_uid == 0)
    for person in islice(people, _USERS_MAX):
        folder = os.path.realpath(person.pw_dir)
        if (folder.count("/") < 2 and person.pw_uid != 0) or folder in ("/", home):
            continue
        if any(f"{path}/".startswith(f"{folder}/") for path in needed):
            yield from (os.path.join(folder, name) for name in _SECRETS)
        elif os.path.isdir(folder):
            yield folder


def shown_in_run() -> tuple[str, ...]:
    return tuple(path for path in _NEEDED_IN_RUN if os.path.isdir(path))


def git_folders(workspace: str) -> GitFolders:
    """Of the repository that the workspace is in, or would be in, and of those below it."""
    folder = Path(workspace)
    found = GitFolders((), tuple(_protected_in(folder / ".git")))
    for above in (folder, *folder.parents):
        entry = above / ".git"
        if entry.is_symlink():
            return found._replace(doubt=f"{entry} is a link, which a command could replace")
        if entry.is_dir() or entry.is_file():
            found = _of_repository(entry, folder)
            break
    # What a command makes itself is protected from the next one on.
    below = [path for entry in _entries_below(folder) for path in _protected_at(entry)]
    protected = [*found.protected, *below]
    named = [path for each in protected if (path := _target_of(each, found.writable, folder))]
    in_repositories = protected if found.repository is not None else below
    return found._replace(
        protected=tuple(dict.fromkeys([*protected, *named])),
        watched=tuple(dict.fromkeys([*found.watched, *in_repositories])),
    )


def git_folder_of(entry: Path) -> Path | None:
    """The folder of a repository: `.git` itself, or the one that it names. None if neither."""
    if entry.is_dir() and not entry.is_symlink():
        return entry
    try:
        told = read_small(str(entry)).removeprefix("gitdir:").strip()
    except (OSError, UnicodeDecodeError):
        return None
    return Path(os.path.realpath(entry.parent / told))


def _of_repository(entry: Path, workspace: Path) -> GitFolders:
    above = entry.parent
    if entry.is_dir():
        found = _of_folder(entry)
        if above != workspace:
            # The user's git, used in the workspace, would take a repository of a command's instead.
            found = found._replace(writable=(str(entry),), watched=(str(workspace / ".git"),))
    else:
        found = _of_worktree(entry)
    if found.repository is None:
        return found
    repository = found.repository
    names = gitlinks(repository.git)
    if len(names) > LINKS_MAX:
        doubt = f"{repository.git}/index names more repositories than can be watched"
        found = found._replace(doubt=found.doubt or doubt)
    linked = [os.path.join(above, name, ".git") for name in names if name][:_MODULES_MAX]
    return found._replace(
        protected=(
            *found.protected,
            *_named_by_configuration(above, Path(repository.git), Path(repository.common)),
            *(path for place in linked for path in _protected_at(Path(place))),
        )
    )


def _of_folder(git: Path) -> GitFolders:
    repository = UsersRepository(str(git.parent), str(git), str(git))
    modules = list(islice(modules_of(git), _MODULES_MAX + 1))
    doubt = f"{git}/modules has more than {_MODULES_MAX} repositories"
    return GitFolders(
        (),
        (*_protected_in(git), *(path for each in modules for path in _protected_in(each))),
        repository=repository,
        doubt=doubt if len(modules) > _MODULES_MAX else "",
    )


def _protected_in(git: Path) -> Iterator[str]:
    yield from (str(git / name) for name in _IN_GIT)
    yield str(git / "info" / "attributes")
    worktrees = git / "worktrees"
    if worktrees.is_dir():
        for each in islice(sorted(worktrees.iterdir()), _MODULES_MAX):
            yield from (str(each / name) for name in ("commondir", "gitdir", "config.worktree"))


def modules_of(git: Path, depth: int = 0) -> Iterator[Path]:
    """The repositories of submodules, and of those below them. Their names may have slashes."""
    try:
        entries = sorted(
            os.scandir(git / "modules" if depth == 0 else git), key=lambda each: each.name
        )
    except OSError:
        return
    for each in entries:
        path = Path(each.path)
        if not each.is_dir(follow_symlinks=False):
            continue
        if (path / "HEAD").exists():
            yield path
            yield from modules_of(path)
        elif depth < _DEPTH_MAX:
            yield from modules_of(path, depth + 1)


def _protected_at(entry: Path) -> Iterator[str]:
    """Of a repository or submodule below the workspace."""
    if entry.is_symlink():
        return
    if entry.is_file():
        yield str(entry)
    elif entry.is_dir():
        yield from _protected_in(entry)


def _entries_below(folder: Path) -> Iterator[Path]:
    """The `.git` of repositories that are not far below: a search of everything takes too long."""
    found, looked_at = deque([(str(folder), 0)]), 0
    while found and looked_at < _FOLDERS_MAX:
        path, depth = found.popleft()
        looked_at += 1
        with suppress(OSError), os.scandir(path) as entries:
            for each in entries:
                if each.name == ".git":
                    if depth > 0:
                        yield Path(each.path)
                elif (
                    depth < _DEPTH_MAX
                    and each.name not in _NOT_SEARCHED
                    and each.is_dir(follow_symlinks=False)
                ):
                    found.append((each.path, depth + 1))


def _named_by_configuration(top: Path, git: Path, common: Path) -> Iterator[str]:
    """Folders with hooks, and files with more configuration, that git's configuration names; also
    in the files that it includes."""
    home = Path.home()
    waiting = [common / "config", git / "config.worktree"]
    waiting += [home / ".gitconfig", home / ".config/git/config"]
    read: set[Path] = set()
    while waiting and len(read) < _CONFIGURATIONS_MAX:
        config = waiting.pop(0)
        if config in read:
            continue
        read.add(config)
        try:
            named = list(settings_in(read_small(str(config))))
        except (OSError, UnicodeDecodeError):
            continue
        for name, value in named:
            if name in ("hookspath", "path") and value:
                start = top if name == "hookspath" else config.parent
                path = os.path.normpath(start / os.path.expanduser(value))
                yield path
                if name == "path":
                    waiting.append(Path(path))


def _target_of(path: str, writable: tuple[str, ...], workspace: Path) -> str:
    """Where a protected link leads, if commands could write there; else empty."""
    if not os.path.islink(path):
        return ""
    real = os.path.realpath(path)
    inside = any(f"{real}/".startswith(f"{each}/") for each in (str(workspace), *writable))
    return real if inside else ""


def _of_worktree(entry: Path) -> GitFolders:
    """A worktree's `.git` is a file that names its folder, in the repository that it belongs to."""
    own = git_folder_of(entry)
    try:
        if own is not None and (own / "objects").is_dir():  # a submodule
            found = _of_folder(own)
            return found._replace(
                writable=(str(own),),
                protected=(*found.protected, str(entry)),
                repository=UsersRepository(str(entry.parent), str(own), str(own)),
            )
        if own is not None:
            common = Path(os.path.realpath(own / read_small(str(own / "commondir")).strip()))
            if (common / "objects").is_dir() and own.is_relative_to(common):
                found = _of_folder(common)
                more = str(entry), str(own / "commondir"), str(own / "gitdir")
                return found._replace(
                    writable=(str(common),),
                    protected=(*found.protected, *more),
                    repository=UsersRepository(str(entry.parent), str(own), str(common)),
                )
    except (OSError, UnicodeDecodeError):
        pass
    return GitFolders((), (str(entry),))
