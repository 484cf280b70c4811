"""Which programs, with which arguments, need approval. Pure tables and small functions.

`RULES` maps a program to a function that takes the program's arguments and yields each `Danger` it
sees. `docs/asked-about.md` describes this table in words, and a test compares the two. `dangers`
has already removed what stands in front of a program (`sudo`, `timeout 5`, `xargs`).
"""

import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from posixpath import basename, normpath

import msgspec


class Why(StrEnum):
    """The reason that people read. Each has a row in docs/asked-about.md."""

    DIRECTORIES = "it deletes directories"
    EVERYTHING = "it deletes the whole system or home"
    FOUND = "it deletes what it finds"
    FILES = "it deletes or empties files"
    DISK = "it overwrites a disk"
    FORMAT = "it formats a disk"
    BOMB = "it is a fork bomb"
    GIT = "it throws away or rewrites work in git"
    PUBLISHES = "it publishes"
    IMAGES = "it deletes or publishes images or data"
    CLUSTER = "it changes a cluster"
    INFRASTRUCTURE = "it changes infrastructure"
    DATA = "it deletes data"
    OTHER_USER = "it runs as another user"
    FETCHED = "it runs what it fetched"
    UNREADABLE = "it runs what cannot be read here"
    SYSTEM = "it changes the system"
    PERMISSIONS = "it changes permissions of a tree"
    ALL_PERMISSIONS = "it changes permissions of the whole system"
    OPEN = "it lets everybody write, or others become you"
    PROCESSES = "it ends other processes"
    SERVICES = "it stops services"
    MACHINE = "it stops the machine"
    BY_ITSELF = "it changes what runs by itself"
    KEYS = "it touches keys"
    SENDS_KEYS = "it sends keys elsewhere"
    OURSELVES = "it works on Bargein itself"


REFUSED = frozenset({Why.EVERYTHING, Why.DISK, Why.FORMAT, Why.BOMB, Why.ALL_PERMISSIONS})
"""No sane request needs these, so they are refused without asking."""


class Danger(msgspec.Struct, frozen=True):
    """`catastrophe`: no sane request needs this. Everything else is asked about."""

    why: Why

    @property
    def catastrophe(self) -> bool:
        return self.why in REFUSED


Look = Callable[[list[str]], Iterator[Danger]]

DISK = re.compile(r"^/dev/(?:sd|hd|vd|xvd|nvme|mmcblk|disk|mapper/|md\d|loop\d)")
SYSTEM_FILES = re.compile(r"^/(?:etc|boot|sys|proc/sys|usr|lib\w*|s?bin|Library|System)(?:/|$)")
_SYSTEM_TREES = re.compile(
    r"^/(?:bin|boot|dev|etc|home|lib\w*|opt|proc|root|sbin|srv|sys|usr|var|Users|System|Library)$"
)
_HOME = re.compile(r"^(?:~|\$HOME|\$\{HOME\}|/home/[^/*]+|/Users/[^/*]+)(?:/?\.?/?\*?)$")
_HERE = ("*", ".", "./", "./*", "..", "../*")
_DRY = ("--dry-run", "--check", "--dryrun", "--dry", "--snapshot", "--help")


def plain(words: Sequence[str]) -> list[str]:
    return [word for word in words if not word.startswith("-")]


def has_flag(words: Sequence[str], letters: str, *names: str) -> bool:
    for word in words:
        if word in names or word.partition("=")[0] in names:
            return True
        if word.startswith("-") and not word.startswith("--") and set(word[1:]) & set(letters):
            return True
    return False


def is_everything(word: str, folder: str = "") -> bool:
    """`folder` is the directory of an earlier `cd`, if known."""
    if word in _HERE:
        return bool(folder) and word not in ("..", "../*") and is_everything(folder)
    if _HOME.match(word):
        return True
    path = normpath(word.removesuffix("*") or ".")
    return path in ("/", "//") or _SYSTEM_TREES.match(path) is not None


# --- ways to say when a program is dangerous


def _always(why: Why, *unless: str) -> Look:
    """Always dangerous, unless one of these words is among the arguments."""

    def look(words: list[str]) -> Iterator[Danger]:
        if not set(unless).union(_DRY).intersection(words):
            yield Danger(why)

    return look


def _with(why: Why, *wanted: str) -> Look:
    """Dangerous with one of these words; `a b` means adjacent, in this order, ignoring flags."""

    def look(words: list[str]) -> Iterator[Danger]:
        bare = plain(words)
        pairs = {f"{one} {two}" for one, two in itertools.pairwise(bare)}
        if pairs.union(words).intersection(wanted) and not set(_DRY).intersection(words):
            yield Danger(why)

    return look


def _verb(why: Why, *wanted: str) -> Look:
    """Dangerous if the first words that are not flags are one of these."""

    def look(words: list[str]) -> Iterator[Danger]:
        bare = plain(words)[:3]
        firsts = {" ".join(bare[:1]), " ".join(bare[:2]), " ".join(bare[:3])}
        if firsts.intersection(wanted) and not set(_DRY).intersection(words):
            yield Danger(why)

    return look


def _matching(why: Why, pattern: str) -> Look:
    """Dangerous if the pattern matches the beginning of a word."""
    compiled = re.compile(pattern)

    def look(words: list[str]) -> Iterator[Danger]:
        found = any(compiled.match(word[:4096]) for word in words)
        if found and not set(_DRY).intersection(words):
            yield Danger(why)

    return look


def _flagged(why: Why, letters: str, *names: str) -> Look:
    def look(words: list[str]) -> Iterator[Danger]:
        if has_flag(words, letters, *names):
            yield Danger(why)

    return look


def _all(*looks: Look) -> Look:
    def look(words: list[str]) -> Iterator[Danger]:
        for each in looks:
            yield from each(words)

    return look


# --- programs that take more than a word to judge


def _rm(words: list[str], folder: str = "") -> Iterator[Danger]:
    targets = [word for word in words if not word.startswith("-")]
    if "--no-preserve-root" in words:
        yield Danger(Why.EVERYTHING)
    if has_flag(words, "rR", "--recursive"):
        whole = any(is_everything(target, folder) for target in targets)
        yield Danger(Why.EVERYTHING if whole else Why.DIRECTORIES)
    elif any(target in ("*", "./*") for target in targets):
        yield Danger(Why.FILES)
    elif any(SYSTEM_FILES.match(target) for target in targets):
        yield Danger(Why.SYSTEM)


def _permissions(words: list[str]) -> Iterator[Danger]:
    if has_flag(words, "R", "--recursive"):
        whole = any(is_everything(target) for target in plain(words))
        yield Danger(Why.ALL_PERMISSIONS if whole else Why.PERMISSIONS)
    elif any(SYSTEM_FILES.match(word) for word in plain(words)):
        yield Danger(Why.SYSTEM)


_OPEN_MODE = re.compile(
    r"^(?:[0-7]?[0-7][0-7][2367]|[4-7][0-7]{3}|[ugoa]*[oa]\+[rx]*w\w*|[ug]*\+s)$"
)


def _chmod(words: list[str]) -> Iterator[Danger]:
    yield from _permissions(words)
    if any(_OPEN_MODE.match(word) for word in plain(words)[:1]):
        yield Danger(Why.OPEN)


def _dd(words: list[str]) -> Iterator[Danger]:
    for word in words:
        if word.startswith("of=") and DISK.match(word[3:]):
            yield Danger(Why.DISK)


def _find(words: list[str]) -> Iterator[Danger]:
    if "-delete" in words:
        yield Danger(Why.FOUND)


def _copy(words: list[str]) -> Iterator[Danger]:
    """Dangerous if the target is a disk or a system file."""
    target = plain(words)[-1:] or [""]
    if DISK.match(target[0]):
        yield Danger(Why.DISK)
    elif len(plain(words)) > 1 and SYSTEM_FILES.match(target[0]):
        yield Danger(Why.SYSTEM)


def _mv(words: list[str]) -> Iterator[Danger]:
    yield from _copy(words)
    bare = plain(words)
    if bare[-1:] == ["/dev/null"]:
        yield Danger(Why.FILES)
    elif any(SYSTEM_FILES.match(word) or is_everything(word) for word in bare[:-1]):
        yield Danger(Why.SYSTEM)


def _sed(words: list[str]) -> Iterator[Danger]:
    if has_flag(words, "i", "--in-place") and any(map(SYSTEM_FILES.match, plain(words))):
        yield Danger(Why.SYSTEM)


def _tar(words: list[str]) -> Iterator[Danger]:
    into = [two for one, two in itertools.pairwise(words) if one in ("-C", "--directory", "-d")]
    if any(target == "/" or SYSTEM_FILES.match(target) for target in into):
        yield Danger(Why.SYSTEM)
    if "--remove-files" in words:
        yield Danger(Why.FILES)


def _truncate(words: list[str]) -> Iterator[Danger]:
    sizes = [two for one, two in itertools.pairwise(words) if one in ("-s", "--size")]
    sizes += [word.partition("=")[2] for word in words if word.startswith("--size=")]
    sizes += [word[2:] for word in words if re.match(r"^-s.", word)]
    if any(not size.startswith("+") for size in sizes):
        yield Danger(Why.FILES)


def _kill(words: list[str]) -> Iterator[Danger]:
    everybody = len(words) > 1 and words[-1] == "-1"
    if everybody or plain(words)[-1:] == ["1"]:
        yield Danger(Why.PROCESSES)


def _mount(words: list[str]) -> Iterator[Danger]:
    """Without arguments, `mount` only lists what is mounted."""
    if plain(words) or "-a" in words:
        yield Danger(Why.SYSTEM)


def _rsync(words: list[str]) -> Iterator[Danger]:
    if has_flag(words, "n", "--dry-run"):
        return
    if any(word.startswith(("--delete", "--remove-source-files")) for word in words):
        yield Danger(Why.FILES)
    yield from _copy(words)


def _docker(words: list[str]) -> Iterator[Danger]:
    bare = plain(words)
    verbs = bare[1:] if bare[:1] in (["compose"], ["container"], ["image"], ["stack"]) else bare
    first = verbs[0] if verbs else ""
    if "down" in verbs and has_flag(words, "v", "--volumes", "--rmi"):
        yield Danger(Why.IMAGES)
    if first in ("rm", "rmi", "remove") and (
        has_flag(words, "fv", "--force", "--volumes") or any("$(" in word for word in words)
    ):
        yield Danger(Why.IMAGES)
    whole = any(re.match(r"^(?:-v|--volume=)?/:", word) for word in words)
    mounted = any("source=/," in word or "src=/," in word for word in words)
    if first in ("run", "create") and (whole or mounted or "--privileged" in words):
        yield Danger(Why.SYSTEM)
    yield from _DOCKER_WORDS(words)


_DOCKER_WORDS = _with(
    Why.IMAGES, "push", "system prune", "volume prune", "volume rm", "image prune", "kill",
    "container prune", "network prune", "swarm leave", "stack rm", "service rm", "network rm",
    "system reset", "--push",
)  # fmt: skip


def _docker_compose(words: list[str]) -> Iterator[Danger]:
    yield from _docker(["compose", *words])


_GIT_VALUES = ("-C", "-c", "--git-dir", "--work-tree", "--namespace", "--exec-path")


def git_action(words: list[str]) -> tuple[str, list[str]]:
    """Returns git's subcommand and its arguments."""
    rest = list(words)
    while rest and rest[0].startswith("-"):
        takes_value = rest.pop(0) in _GIT_VALUES
        del rest[: 1 if takes_value else 0]
    return (rest[0], rest[1:]) if rest else ("", [])


def _git_push(given: list[str]) -> bool:
    forced = any(word.startswith(("--force", "+", ":")) for word in given)
    return forced or has_flag(given, "fd", "--mirror", "--delete", "--prune")


def _git_checkout(given: list[str]) -> bool:
    paths = "--" in given or any(word in (".", "*", ":/", "./") for word in given)
    return paths or has_flag(given, "fB", "--force", "--ours", "--theirs")


def _git_restore(given: list[str]) -> bool:
    staged_alone = has_flag(given, "S", "--staged") and not has_flag(given, "W", "--worktree")
    return bool(plain(given)) and not staged_alone


_GIT: dict[str, Callable[[list[str]], bool]] = {
    "push": _git_push,
    "checkout": _git_checkout,
    "restore": _git_restore,
    "reset": lambda given: bool({"--hard", "--merge"}.intersection(given)),
    "clean": lambda given: has_flag(given, "f", "--force") and not has_flag(given, "n"),
    "rm": lambda given: has_flag(given, "rf", "--force") and "--cached" not in given,
    "branch": lambda given: has_flag(given, "DMf", "--force"),
    "switch": lambda given: has_flag(given, "fC", "--force", "--discard-changes"),
    "stash": lambda given: bool({"drop", "clear"}.intersection(given[:1])),
    "tag": lambda given: has_flag(given, "df", "--delete", "--force"),
    "reflog": lambda given: bool({"expire", "delete"}.intersection(given)),
    "gc": lambda given: any(word.startswith("--prune=") for word in given),
    "update-ref": lambda given: has_flag(given, "d", "--delete"),
    "worktree": lambda given: given[:1] == ["remove"] and has_flag(given, "f", "--force"),
    "submodule": lambda given: given[:1] == ["deinit"],
    "read-tree": lambda given: "--reset" in given,
    "replace": lambda given: True,
    "prune": lambda given: not has_flag(given, "n"),
    "lfs": lambda given: given[:1] == ["prune"],
    "filter-branch": lambda given: True,
    "filter-repo": lambda given: True,
}


def _git(words: list[str]) -> Iterator[Danger]:
    action, given = git_action(words)
    judge = _GIT.get(action)
    if judge is not None and "--dry-run" not in given and judge(given):
        yield Danger(Why.GIT)


def _kubectl(words: list[str]) -> Iterator[Danger]:
    if not any(word.startswith("--dry-run") for word in words):
        yield from _KUBECTL_VERBS(words)
    yield from _with(Why.KEYS, "get secret", "get secrets")(words)


_KUBECTL_VERBS = _with(
    Why.CLUSTER, "delete", "drain", "apply", "replace", "patch", "scale", "cordon", "taint", "edit",
    "rollout undo", "rollout restart",
)  # fmt: skip


def _crontab(words: list[str]) -> Iterator[Danger]:
    if "-l" not in words:
        yield Danger(Why.BY_ITSELF)


_TIME = re.compile(r"^(?:now|midnight|noon|teatime|today|tomorrow|\d)")


def _at(words: list[str]) -> Iterator[Danger]:
    """`at` is also an English word, so it counts only with a time or with a file to run."""
    if any(map(_TIME.match, plain(words)[:1])) or has_flag(words, "ft"):
        yield Danger(Why.BY_ITSELF)


def _ip(words: list[str]) -> Iterator[Danger]:
    if {"del", "delete", "flush", "down"}.intersection(words):
        yield Danger(Why.SYSTEM)


_publish = _verb(
    Why.PUBLISHES, "publish", "unpublish", "deprecate", "npm publish", "upload", "push", "yank",
    "release create", "nuget push", "pub publish", "hex.publish", "trunk push", "release",
    "gist create",
)  # fmt: skip
_npm = _all(
    _verb(Why.PUBLISHES, "publish", "unpublish", "deprecate", "npm publish", "dist-tag add"),
    _verb(Why.PUBLISHES, "changeset publish", "lerna publish", "exec publish"),
)
_services = _all(
    _with(Why.SERVICES, "stop", "disable", "mask", "kill", "unload", "restart", "bootout", "remove",
          "isolate", "delete"),
    _with(Why.MACHINE, "reboot", "poweroff", "halt", "kexec", "suspend", "hibernate"),
    _with(Why.BY_ITSELF, "enable", "load", "bootstrap"),
)  # fmt: skip
_cloud_deletes = (
    r"(?:.*:)?(?:delete|destroy|terminate|remove|purge|rm|rb|del|reset|deregister|wipe)"
    r"(?:[-:][\w-]+)?$"
)
_cloud = _all(
    _matching(Why.INFRASTRUCTURE, _cloud_deletes),
    _with(Why.INFRASTRUCTURE, "--delete", "deploy", "app deploy", "--prod", "container:release"),
    _with(Why.KEYS, "auth print-access-token", "auth token", "configure get", "get-secret-value"),
)
_always_system = _always(Why.SYSTEM)
_disk_tools = _always(Why.SYSTEM, "-l", "--list", "-p", "print")

RULES: dict[str, Look] = {
    # files and disks
    "rm": _rm,
    "rimraf": _always(Why.DIRECTORIES),
    "remove-item": _always(Why.DIRECTORIES),
    "rd": _always(Why.DIRECTORIES),
    "shred": _always(Why.FILES),
    "srm": _always(Why.FILES),
    "truncate": _truncate,
    "find": _find,
    "fd": lambda words: iter(()),
    "mv": _mv,
    **dict.fromkeys(("cp", "install", "ln"), _copy),
    "rsync": _rsync,
    "rclone": _verb(Why.FILES, "delete", "purge", "sync", "move", "deletefile", "rmdirs"),
    "sed": _sed,
    **dict.fromkeys(("tar", "unzip", "bsdtar"), _tar),
    "chmod": _chmod,
    **dict.fromkeys(("chown", "chgrp", "setfacl", "chattr"), _permissions),
    "dd": _dd,
    **dict.fromkeys(("wipefs", "blkdiscard", "mke2fs"), _always(Why.FORMAT, "-n")),
    **dict.fromkeys(("fdisk", "parted", "sgdisk", "sfdisk", "gdisk", "cfdisk"), _disk_tools),
    **dict.fromkeys(("lvremove", "vgremove", "pvremove", "mkswap", "swapoff"), _always_system),
    **dict.fromkeys(("zpool", "zfs"), _with(Why.DATA, "destroy", "rollback", "labelclear")),
    "btrfs": _with(Why.DATA, "subvolume delete"),
    "cryptsetup": _with(Why.FORMAT, "luksFormat", "erase", "luksErase"),
    "nvme": _with(Why.FORMAT, "format", "sanitize"),
    "hdparm": _matching(Why.FORMAT, r"--security-erase"),
    "mdadm": _with(Why.FORMAT, "--zero-superblock"),
    "badblocks": _flagged(Why.FORMAT, "wn"),
    "diskutil": _matching(Why.FORMAT, r"(?:erase|partition|zero)"),
    # version control
    "git": _git,
    "bfg": _always(Why.GIT),
    "hg": _all(_verb(Why.GIT, "strip", "purge", "rollback"), _with(Why.GIT, "-C", "--clean")),
    "svn": _with(Why.GIT, "revert", "delete"),
    "gh": _all(
        _verb(Why.PUBLISHES, "release create", "release upload", "gist create", "repo create"),
        _with(Why.INFRASTRUCTURE, "delete", "archive", "secret set", "--visibility", "DELETE"),
        _verb(Why.GIT, "pr merge", "repo sync"),
        _verb(Why.KEYS, "auth token"),
    ),
    "glab": _with(Why.INFRASTRUCTURE, "delete", "release create", "mr merge"),
    # publishing
    **dict.fromkeys(("npm", "pnpm", "yarn", "npx", "bunx", "bun"), _npm),
    **dict.fromkeys(
        ("cargo", "poetry", "uv", "hatch", "flit", "twine", "gem", "pdm", "vsce", "ovsx", "lerna",
         "changeset", "nuget", "dotnet", "dart", "flutter", "pod", "anaconda", "luarocks",
         "stack", "cabal", "goreleaser", "huggingface-cli", "changesets"),
        _publish,
    ),
    "mix": _all(_publish, _matching(Why.DATA, r"ecto\.(?:drop|reset)")),
    **dict.fromkeys(("semantic-release", "np", "surge"), _always(Why.PUBLISHES)),
    **dict.fromkeys(("mvn", "mvnw"), _matching(Why.PUBLISHES, r"(?:deploy|release:perform)$")),
    **dict.fromkeys(("gradle", "gradlew"), _matching(Why.PUBLISHES, r"publish(?!ToMavenLocal)")),
    "fastlane": _with(Why.PUBLISHES, "deliver", "release", "pilot", "supply"),
    "eas": _verb(Why.PUBLISHES, "submit", "update"),
    # containers, clusters, clouds
    **dict.fromkeys(("docker", "podman", "nerdctl", "buildah"), _docker),
    **dict.fromkeys(("docker-compose", "podman-compose"), _docker_compose),
    "skopeo": _verb(Why.IMAGES, "copy", "delete", "sync"),
    **dict.fromkeys(("kubectl", "oc", "k"), _kubectl),
    "helm": _verb(Why.CLUSTER, "uninstall", "delete", "rollback", "upgrade", "install", "push"),
    **dict.fromkeys(
        ("terraform", "tofu", "terragrunt"),
        _with(Why.INFRASTRUCTURE, "destroy", "apply", "state rm", "workspace delete", "taint",
              "force-unlock", "run-all"),
    ),
    "vagrant": _verb(Why.INFRASTRUCTURE, "destroy"),
    "pulumi": _verb(Why.INFRASTRUCTURE, "up", "update", "destroy", "stack rm", "cancel"),
    **dict.fromkeys(("cdk", "sls", "serverless", "sam"),
                    _verb(Why.INFRASTRUCTURE, "deploy", "destroy", "remove", "delete")),
    **dict.fromkeys(("ansible-playbook", "ansible"), _always(Why.INFRASTRUCTURE, "--syntax-check",
                                                             "--list-hosts", "--list-tasks")),
    **dict.fromkeys(
        ("aws", "gcloud", "az", "doctl", "heroku", "fly", "flyctl", "vercel", "netlify", "firebase",
         "wrangler", "railway", "eksctl", "gsutil", "s3cmd", "mc", "bq", "linode-cli", "hcloud",
         "eb", "cf", "supabase", "scw", "ibmcloud"),
        _cloud,
    ),
    # data
    **dict.fromkeys(("dropdb", "dropuser"), _always(Why.DATA)),
    "mysqladmin": _with(Why.DATA, "drop", "flush-hosts"),
    "redis-cli": _matching(Why.DATA, r"(?i)(?:flushall|flushdb|shutdown)$"),
    **dict.fromkeys(("rails", "rake"), _matching(Why.DATA, r"db:(?:drop|reset|purge|schema:load)")),
    "artisan": _matching(Why.DATA, r"(?:migrate:(?:fresh|reset|refresh)|db:wipe)$"),
    "manage.py": _matching(Why.DATA, r"(?:flush|reset_db|sqlflush)$"),
    "prisma": _with(Why.DATA, "migrate reset", "--force-reset", "--accept-data-loss"),
    "sequelize": _matching(Why.DATA, r"db:(?:drop|migrate:undo:all)"),
    "knex": _with(Why.DATA, "migrate:rollback"),
    "typeorm": _with(Why.DATA, "schema:drop", "migration:revert"),
    "alembic": _with(Why.DATA, "downgrade"),
    "flask": _with(Why.DATA, "db downgrade"),
    "pg_restore": _flagged(Why.DATA, "c", "--clean"),
    # processes, services, the machine
    "kill": _kill,
    **dict.fromkeys(("pkill", "killall", "killall5", "xkill", "skill"), _always(Why.PROCESSES)),
    "fuser": _flagged(Why.PROCESSES, "k", "--kill"),
    **dict.fromkeys(
        ("shutdown", "reboot", "halt", "poweroff", "kexec"),
        _always(Why.MACHINE),
    ),
    **dict.fromkeys(("systemctl", "launchctl", "service", "supervisorctl"), _services),
    **dict.fromkeys(("init", "telinit"), _matching(Why.MACHINE, r"[0-6sS]$")),
    "pm2": _verb(Why.SERVICES, "delete", "kill", "stop"),
    "crontab": _crontab,
    "at": _at,
    **dict.fromkeys(("systemd-run", "schtasks"), _always(Why.BY_ITSELF)),
    # the system
    **dict.fromkeys(
        ("iptables", "ip6tables", "nft", "visudo", "useradd", "userdel", "usermod",
         "adduser", "deluser", "groupadd", "groupdel", "passwd", "chpasswd", "chsh", "setcap",
         "modprobe", "insmod", "rmmod", "setenforce", "update-grub", "grub-install", "efibootmgr",
         "update-alternatives", "ufw", "firewall-cmd", "vipw"),
        _always(Why.SYSTEM, "-l", "-L", "--list", "--list-all", "status", "-S", "list"),
    ),
    "mount": _mount,
    "umount": _always(Why.SYSTEM),
    "sysctl": _with(Why.SYSTEM, "-w", "-p", "--write", "--system"),
    **dict.fromkeys(("ip", "ifconfig", "nmcli", "route"), _ip),
    **dict.fromkeys(("hostnamectl", "timedatectl", "localectl"), _matching(Why.SYSTEM, r"set-")),
    **dict.fromkeys(("apt", "apt-get", "yum", "dnf", "brew", "snap", "flatpak", "apk", "zypper"),
                    _verb(Why.SYSTEM, "remove", "purge", "autoremove", "erase", "uninstall", "del",
                          "dist-upgrade", "full-upgrade")),
    **dict.fromkeys(("dpkg", "rpm"), _flagged(Why.SYSTEM, "rPe", "--purge", "--remove", "--erase")),
    "pacman": _matching(Why.SYSTEM, r"-R|--remove"),
    **dict.fromkeys(("conda", "mamba"), _verb(Why.DIRECTORIES, "env remove", "remove")),
    # keys
    "gpg": _with(Why.KEYS, "--export-secret-keys", "--export-secret-subkeys", "--delete-keys",
                 "--delete-secret-keys"),
    "security": _matching(Why.KEYS, r"(?:find|dump|export|delete)-"),
    **dict.fromkeys(("op", "pass", "vault", "bw"),
                    _verb(Why.KEYS, "read", "show", "get", "kv get", "item get", "kv delete")),
    "bargein": _verb(Why.OURSELVES, "token"),
}  # fmt: skip


def by_program(words: list[str], folder: str = "") -> Iterator[Danger]:
    """Yields the dangers of the program that these words start."""
    head = basename(words[0])
    if head == "rm":
        yield from _rm(words[1:], folder)
        return
    if head.startswith("mkfs"):
        yield Danger(Why.FORMAT)
    look = RULES.get(head) or RULES.get(head.lower())
    if look is not None:
        yield from look(words[1:])
