"""Finds what a shell command, or code that starts one, may destroy, publish or take over. Pure.

`look_at` returns the worst danger it sees. It looks through the usual wrappers (`sudo`,
`timeout 5`, `xargs`, `bash -c`, `ssh host`, `find -exec` and similar), one-liners of interpreters,
text piped or written into a shell, and files that were fetched and then run, a few levels deep.
`danger_rules` lists the dangerous programs.

This catches honest mistakes. It does not protect against a command that hides what it does: the
sandbox does that.
"""

import itertools
import re
from collections.abc import Iterator, Sequence
from posixpath import basename
from typing import NamedTuple

from bargein.tools.danger_rules import (
    DISK,
    SYSTEM_FILES,
    Danger,
    Why,
    by_program,
    git_action,
    is_everything,
    plain,
)
from bargein.tools.shell import SimpleCommand, read_commands

__all__ = ["Danger", "Why", "look_at"]

_DEPTH_MAX = 5
# About the characters of a text that is looked at; a word is some of them.
_WORK_MIN = 200_000
_WORK_EACH = 4
_WORK_A_TEXT = 100
_WORK_A_WORD = 8
_TEXT_CHARS_MAX = 4096
_SHELLS = {"sh", "bash", "zsh", "dash", "ksh", "fish", "ash", "pwsh", "powershell"}
_SOURCES = {"source", ".", "eval"}
_INTERPRETER = re.compile(r"^(?:python|pypy|perl|ruby|node|nodejs|php|deno|bun|lua|Rscript)[\d.]*$")
_CODE_OPTIONS = {"-c", "-e", "-r", "-E", "--eval", "-p", "--print", "-pe", "-ne", "eval"}
_FETCHERS = {"curl", "wget", "fetch", "aria2c", "http", "https", "xh"}
_DECODERS = {"base64", "base32", "xxd", "openssl", "uudecode", "gunzip", "zcat", "gpg"}
_SENDERS = {"curl", "wget", "nc", "ncat", "netcat", "scp", "sftp", "ftp", "http", "xh", "telnet"}
_SAYS_ITS_WORDS = {"echo", "printf"}
_READS_TEXT = {
    *("grep", "egrep", "fgrep", "rg", "ag", "ack", "echo", "printf", "git", "sed", "awk", "cat"),
    *("less", "head", "tail", "ls", "gh", "jq", "cut", "sort", "diff", "vim", "nano", "tee"),
}
_SQL_CLIENTS = {
    *("psql", "mysql", "mariadb", "sqlite3", "sqlcmd", "cqlsh", "duckdb", "clickhouse-client"),
    *("snowsql", "mongosh", "mongo", "cockroach", "bq", "influx"),
}
_TEXT_OPTIONS = {"-S", "--split-string", "-c", "--command", "--call"}
_CODE_RUNNERS = {"system", "exec", "spawn", "popen", "sh"}
_DELETERS = {"rm", "unlink", "shred"}
_PROCESS_FINDERS = {"pgrep", "pidof", "ps"}
_OTHER_USER = {"sudo", "doas", "su", "pkexec", "runuser", "gosu", "su-exec"}


class _Wrapper(NamedTuple):
    """`values`: options that take the next word as their value. `skipped`: how many words precede
    the command. `is_text`: the rest is one text for a shell."""

    values: frozenset[str] = frozenset()
    skipped: int = 0
    is_text: bool = False


def _wrapper(values: str = "", skipped: int = 0, *, is_text: bool = False) -> _Wrapper:
    return _Wrapper(frozenset(values.split()), skipped, is_text)


_WRAPPERS: dict[str, _Wrapper] = {
    **dict.fromkeys(
        ("nohup", "exec", "builtin", "setsid", "then", "do", "else", "if", "elif", "while", "until",
         "!", "{", "coproc", "caffeinate", "unbuffer", "busybox", "toybox", "catchsegv", "winpty",
         "proxychains", "torsocks", "dbus-run-session", "xvfb-run", "systemd-inhibit"),
        _wrapper("-a -t -n"),
    ),
    "command": _wrapper(),
    "env": _wrapper("-u -C --unset --chdir"),
    "time": _wrapper("-f -o"),
    "nice": _wrapper("-n --adjustment"),
    "ionice": _wrapper("-c -n -t"),
    "chrt": _wrapper("-p -T -P -D", 1),
    "taskset": _wrapper("-c --cpu-list", 0),
    "timeout": _wrapper("-s -k --signal --kill-after", 1),
    "gtimeout": _wrapper("-s -k", 1),
    "stdbuf": _wrapper("-i -o -e"),
    "xargs": _wrapper("-I -n -P -L -d -a -E -s --max-args --max-procs --delimiter"),
    "parallel": _wrapper("-j -n -N -a --jobs --colsep -I --max-args", is_text=True),
    "watch": _wrapper("-n --interval", is_text=True),
    "flock": _wrapper("-w -E --timeout", 1),
    "script": _wrapper("-c -t"),
    **dict.fromkeys(("strace", "ltrace", "perf"), _wrapper("-o -e -p -s -P -u -E")),
    "valgrind": _wrapper(),
    "chroot": _wrapper("", 1),
    "unshare": _wrapper("-S -G -R -w"),
    "nsenter": _wrapper("-t --target -S -G"),
    "entr": _wrapper(),
    "sudo": _wrapper("-u -g -h -p -C -r -t -U -D -T --user --group --chdir"),
    "doas": _wrapper("-u -C"),
    "pkexec": _wrapper("--user"),
    "runuser": _wrapper("-u -g -G"),
    **dict.fromkeys(("gosu", "su-exec"), _wrapper("", 1)),
    "ssh": _wrapper("-p -i -l -o -L -R -D -F -J -b -c -E -e -I -m -O -Q -S -W -w", 1, is_text=True),
    "direnv": _wrapper("", 2),
    "npx": _wrapper("-p --package -c"),
    "bunx": _wrapper(),
    "uvx": _wrapper("--from --with"),
    "pipx": _wrapper("--spec", 1),
}  # fmt: skip
# `poetry run COMMAND` and the like.
_RUNNERS = {
    *(("poetry", "run"), ("uv", "run"), ("pipenv", "run"), ("pdm", "run"), ("hatch", "run")),
    *(("bundle", "exec"), ("npm", "exec"), ("pnpm", "exec"), ("pnpm", "dlx"), ("yarn", "dlx")),
    *(("conda", "run"), ("rye", "run"), ("mise", "exec"), ("asdf", "exec"), ("nix", "run")),
}
# Programs that take a whole command among their arguments, at no fixed place.
_HOLDERS = {
    *("docker", "podman", "nerdctl", "docker-compose", "podman-compose", "kubectl", "oc", "k"),
    *("lxc", "vagrant", "heroku", "fly", "flyctl", "tmux", "screen", "multipass", "wsl", "adb"),
    *("ansible", "pdsh", "pssh", "salt", "distrobox", "toolbox", "machinectl"),
}
# Commands to look for among those arguments.
_HELD = {*_SHELLS, *_SQL_CLIENTS, "rm", "dropdb", "mkfs", "dd", "sudo", "redis-cli"}
_ASSIGNMENT = re.compile(r"^\w+\+?=")
_VALUE = re.compile(r"^(?:[+-]?\d+(?:\.\d+)?[smhd]?|\{\}|0x[0-9a-f]+|[\d,-]+)$")
_FETCHED_INSIDE = re.compile(r"^\s*(?:\$\(|<\(|`)\s*(?:curl|wget|fetch)\b")
_KEYS = re.compile(
    r"(?:(?:~|\$HOME|\$\{HOME\}|/root|/home/[\w.-]+|/Users/[\w.-]+)/"
    r"\.(?:ssh(?!/(?:known_hosts|[\w.-]+\.pub)\b)|gnupg|aws|kube|azure|netrc|pypirc|git-credentials"
    r"|npmrc|password-store|docker/config\.json|config/gcloud|config/gh)\b)"
    r"|/etc/g?shadow\b|/proc/(?:\d+|self|\$\w+|\$\$|\*|\[0-9\]\*)/(?:environ|mem)\b"
    r"|\bid_(?:rsa|dsa|ecdsa|ed25519)(?!\.pub)\b"
)
_SECRET_FILE = re.compile(
    r"(?:^|[/@=:])(?:\.env(?:\.\w+)?|id_(?:rsa|dsa|ecdsa|ed25519)|[\w.-]+\.(?:pem|p12|pfx|key|kdbx)"
    r"|credentials(?:\.json)?|\.netrc|\.npmrc|\.pypirc|\.git-credentials|shadow)$"
)
_OWN_KEY_OPTIONS = {"--cacert", "--cert", "--key", "-E", "-i", "--identity", "--proxy-cert"}
_OURSELVES = re.compile(r"\.local/share/bargein\b|\.config/bargein\b|\bBARGEIN_HOME\b")
_DROPS = re.compile(
    r"(?i)\b(?:drop\s(?:table|database|schema|user|role|view|index|keyspace|collection)"
    r"|truncate\s(?:table\b|\w+\s?;))|\bdropDatabase\s?\(|\.drop\s?\(\s?\)|\bdeleteMany\s?\(\s?\{\s?\}"
    r"|\bremove\s?\(\s?\{\s?\}"
)
_WITHOUT_WHERE = re.compile(r"(?i)^\s*(?:delete\sfrom\s|update\s\S+\sset\s|truncate\s)")
_CODE_DELETES = re.compile(
    r"""(?x)\b(?:rmtree|removedirs|rm_rf?|remove_dir_all|remove_entry_secure|removeSync|rimraf
        |rmSync|rmdirSync|fs\.rm|emptyDirSync|deltree)\s*\(?\s*(?:["']([^"'\n]{0,200})["'])?"""
)
_CODE_RUNS_FETCHED = re.compile(
    r"\b(?:exec|eval|compile|new\sFunction|Function)\s*\(.{0,200}?"
    r"(?:urlopen|requests\.get|httpx\.get|fetch\s*\(|open-uri|URI\.open|LWP|file_get_contents\(.http)",
    re.DOTALL,
)
_CODE_DELETES_FILES = re.compile(
    r"\b(?:unlink|remove|rm)\b.{0,40}\bglob\b|\bglob\b.{0,80}\bunlink\b"
)


def look_at(text: str, *, as_code: bool = False) -> Danger | None:
    """The worst danger in a command, or None."""
    found: Danger | None = None
    for danger in _dangers(text, as_code, 0, _Work(_WORK_MIN + _WORK_EACH * len(text))):
        if danger.catastrophe:
            return danger
        found = found or danger
    return found


class _Work:
    """Bounds how much is looked at inside of other commands: one can be there in thousands of ways,
    and nobody can stop anything meanwhile."""

    def __init__(self, left: int) -> None:
        self._left = left

    def spend(self, size: int) -> bool:
        """Whether there was so much left."""
        self._left -= size
        return self._left >= 0


def _dangers(text: str, as_code: bool, depth: int, work: _Work) -> Iterator[Danger]:
    if depth and not work.spend(_WORK_A_TEXT + len(text)):
        yield Danger(Why.UNREADABLE)
        return
    if ":(){" in "".join(text.split()):
        yield Danger(Why.BOMB)
    if as_code:
        yield from _of_code(text)
    walk = _Walk(depth, work)
    for command in read_commands(text, as_code=as_code):
        if not as_code or _is_in_code(command):
            yield from walk.step(command)


def _is_in_code(command: SimpleCommand) -> bool:
    """Whether a piece of code looks like a command: a string, or an argument of a shell call."""
    if command.words and command.words[0] in _CODE_RUNNERS and not command.is_text:
        del command.words[0]
        return True
    return command.is_text or command.entered == "`"


def _of_code(text: str) -> Iterator[Danger]:
    for found in _CODE_DELETES.finditer(text):
        whole = found[1] is not None and is_everything(found[1])
        yield Danger(Why.EVERYTHING if whole else Why.DIRECTORIES)
    if _CODE_RUNS_FETCHED.search(text):
        yield Danger(Why.FETCHED)
    if _CODE_DELETES_FILES.search(text):
        yield Danger(Why.FILES)
    if _OURSELVES.search(text):
        yield Danger(Why.OURSELVES)


class _Stage(NamedTuple):
    words: list[str]
    head: str


class _Pipe:
    """Summarizes the stages of a pipeline so far, in constant space."""

    def __init__(self) -> None:
        self.last = _Stage([], "")
        self.heads: set[str] = set()
        self.secret = False

    def add(self, stage: _Stage) -> None:
        self.last = stage
        self.heads.add(stage.head)
        alone = len(stage.words) <= 1
        self.secret = (
            self.secret
            or stage.head in ("env", "printenv")
            or (stage.head in ("set", "export") and alone)
            or any(map(_is_secret_file, stage.words[1:]))
        )


class _Walk:
    """Carries state from one simple command to the next: fetched files, `cd`, the pipeline."""

    def __init__(self, depth: int, work: _Work) -> None:
        self._depth = depth
        self._work = work
        self._fetched: set[str] = set()
        self._folder = ""
        self._pipe = _Pipe()

    def step(self, command: SimpleCommand) -> Iterator[Danger]:
        if command.entered not in ("|", "$(", "`", "<(", ">(", ")"):
            self._pipe = _Pipe()
        unwrapped = _unwrapped(command.words)
        words = unwrapped.words
        if unwrapped.other_user:
            yield Danger(Why.OTHER_USER)
        yield from _of_files(command)
        texts = [*unwrapped.texts]
        # `env` alone wraps nothing; it prints all variables.
        stage = _Stage(words, basename(words[0]) if words else unwrapped.last)
        if words and words[1:2] not in (["="], ["=="]):
            yield from by_program(words, self._folder)
        if words:
            yield from self._of_running(command, stage)
            yield from _of_data(stage, self._pipe, command)
            yield from _of_sending(stage, self._pipe)
            yield from self._of_many(command, stage, unwrapped.many)
            texts += _shell_texts(stage)
            yield from self._codes(stage, command)
            yield from self._inner(stage)
        texts += _piped_texts(stage, self._pipe, command)
        for word in [*command.words, *command.expanded]:
            texts += [word.partition(mark)[2] for mark in ("$(", "`") if mark in word]
        if self._depth < _DEPTH_MAX:
            for text in texts:
                yield from _dangers(text, False, self._depth + 1, self._work)
        self._remember(command, stage)

    def _of_many(self, command: SimpleCommand, stage: _Stage, many: bool) -> Iterator[Danger]:
        """Commands that act on everything another command finds."""
        if many and stage.head in _DELETERS:
            yield Danger(Why.FOUND)
        found_by_name = self._pipe.heads & _PROCESS_FINDERS
        killed = stage.head in _PROCESS_FINDERS and self._pipe.last.head == "kill"
        if (many and stage.head == "kill" and found_by_name) or (
            killed and command.entered in ("$(", "`")
        ):
            yield Danger(Why.PROCESSES)

    def _inner(self, stage: _Stage) -> Iterator[Danger]:
        """Looks at the commands among the arguments of this one."""
        if self._depth >= _DEPTH_MAX:
            return
        for inner in _commands_inside(stage):
            if not self._work.spend(_WORK_A_TEXT + _WORK_A_WORD * len(inner)):
                yield Danger(Why.UNREADABLE)
                return
            finds = stage.head in ("find", "fd", "fdfind")
            if finds and basename(inner[0]) in _DELETERS:
                yield Danger(Why.FOUND)
            walk = _Walk(self._depth + 1, self._work)
            yield from walk.step(SimpleCommand(words=inner))

    def _codes(self, stage: _Stage, command: SimpleCommand) -> Iterator[Danger]:
        if self._depth < _DEPTH_MAX:
            for code in _codes_of(stage, command):
                yield from _dangers(code, True, self._depth + 1, self._work)

    def _of_running(self, command: SimpleCommand, stage: _Stage) -> Iterator[Danger]:
        """Running what was fetched: piped, substituted, or written to a file earlier."""
        words, head = stage
        runs = head in _SHELLS or _INTERPRETER.match(head) is not None
        before = self._pipe.last
        if runs and command.entered == "|" and _reads_program(stage):
            if self._pipe.heads & _FETCHERS:
                yield Danger(Why.FETCHED)
            elif self._pipe.heads & _DECODERS:
                yield Danger(Why.UNREADABLE)
        if head in _FETCHERS and (
            (command.entered == "<(" and _runs_files(before))
            or (command.entered in ("$(", "`") and _runs_texts(before))
        ):
            yield Danger(Why.FETCHED)
        if runs or head in _SOURCES:
            places = zip(["", *words], words, strict=False)
            if any(
                _FETCHED_INSIDE.match(word)
                and (head in _SOURCES or before_it in _CODE_OPTIONS or word.startswith("<("))
                for before_it, word in places
            ):
                yield Danger(Why.FETCHED)
        if head in ("deno", "bun") and any("://" in word for word in plain(words)):
            yield Danger(Why.FETCHED)
        run = words[1:] if runs or head in _SOURCES else words[:1]
        if any(_bare_path(word) in self._fetched for word in run):
            yield Danger(Why.FETCHED)

    def _remember(self, command: SimpleCommand, stage: _Stage) -> None:
        words, head = stage
        if head in _FETCHERS:
            self._fetched.update(_files_fetched(words))
            self._fetched.update(map(_bare_path, command.written_to))
        elif self._pipe.heads & _FETCHERS:
            written = plain(words[1:]) if head == "tee" else command.written_to
            self._fetched.update(map(_bare_path, written))
        if head in ("cd", "pushd") and len(words) > 1:
            self._folder = words[1]
        self._pipe.add(stage)


# --- removing the wrappers


class _Unwrapped(NamedTuple):
    """The command behind its wrappers. `texts` are texts for a shell. `many`: it runs once for each
    of many things. `last` is the innermost wrapper."""

    words: list[str]
    texts: list[str]
    other_user: bool
    many: bool
    last: str = ""


def _unwrapped(words: Sequence[str]) -> _Unwrapped:
    rest = list(words)
    texts: list[str] = []
    other_user = many = False
    last = ""
    while rest:
        head = basename(rest[0])
        if _ASSIGNMENT.match(rest[0]):
            rest.pop(0)
            continue
        if len(rest) > 1 and (head, rest[1]) in _RUNNERS:
            del rest[:2]
            _drop_options(rest, frozenset(), texts)
            continue
        if head == "su":
            return _Unwrapped([], _texts_of_su(rest), True, many, head)
        wrapper = _WRAPPERS.get(head)
        if wrapper is None or (head == "command" and rest[1:2] in (["-v"], ["-V"])):
            break
        other_user = other_user or head in _OTHER_USER
        many = many or head in ("xargs", "parallel")
        last = head
        rest.pop(0)
        _drop_options(rest, wrapper.values, texts)
        while rest and wrapper.skipped == 0 and _VALUE.match(rest[0]):
            rest.pop(0)
        del rest[: wrapper.skipped]
        if wrapper.is_text:
            _drop_options(rest, wrapper.values, texts)
            if ":::" in rest:
                rest = rest[: rest.index(":::")]
            if len(rest) > 1 or (rest and " " in rest[0]):
                texts.append(" ".join(rest))
        elif head == "flock":
            _drop_options(rest, frozenset(), texts)
    return _Unwrapped(rest, texts, other_user, many, last)


def _drop_options(rest: list[str], values: frozenset[str], texts: list[str]) -> None:
    """Removes options and their values from `rest`; values that are commands go to `texts`."""
    while rest and rest[0].startswith("-"):
        option = rest.pop(0)
        if option == "--":
            return
        if option in _TEXT_OPTIONS and rest and " " in rest[0]:
            texts.append(rest.pop(0))
        elif option in values and rest:
            rest.pop(0)


def _texts_of_su(words: list[str]) -> list[str]:
    return [two for one, two in itertools.pairwise(words) if one in ("-c", "--command")]


# --- commands inside a command


def _shell_texts(stage: _Stage) -> list[str]:
    """Returns the arguments that are themselves commands for a shell."""
    words, head = stage
    if head in _SHELLS:
        pairs = itertools.pairwise(words)
        return [text for option, text in pairs if _is_command_option(option)]
    if head == "eval":
        return [" ".join(words[1:])]
    if head == "trap" and len(words) > 2:
        return [words[1]]
    if head == "git":
        action, given = git_action(words[1:])
        if action == "submodule" and "foreach" in given:
            return [" ".join(plain(given[given.index("foreach") + 1 :]))]
        if action == "rebase":
            pairs = itertools.pairwise(given)
            return [two for one, two in pairs if one in ("-x", "--exec")]
        if action == "bisect" and given[:1] == ["run"]:
            return [" ".join(given[1:])]
    if head in _HOLDERS:
        return [word for word in words[1:] if " " in word and not word.startswith("-")]
    if " " in words[0]:
        return [words[0]]
    return []


def _is_command_option(option: str) -> bool:
    if option.lower() in ("-command", "--command", "-encodedcommand"):
        return True
    return option.startswith("-") and not option.startswith("--") and "c" in option


def _commands_inside(stage: _Stage) -> Iterator[list[str]]:
    words, head = stage
    if head in ("find", "fd", "fdfind"):
        starts = ("-exec", "-execdir", "-ok", "-okdir", "-x", "-X", "--exec", "--exec-batch")
        for at, word in enumerate(words):
            if word in starts and at + 1 < len(words):
                yield list(
                    itertools.takewhile(lambda each: each not in (";", "+"), words[at + 1 :])
                )
    elif head in _HOLDERS:
        for at, word in enumerate(words[1:], 1):
            if basename(word) in _HELD and (word != "rm" or at > _verbs_of(words)):
                yield words[at:]
                return
    elif _INTERPRETER.match(head) or head in _SHELLS:
        # An interpreter runs a program: `python manage.py`, `php artisan`.
        rest = words[2:] if words[1:2] == ["-m"] else words[1:]
        if rest and not rest[0].startswith("-") and " " not in rest[0]:
            yield rest


def _verbs_of(words: list[str]) -> int:
    """How many words name the subcommand, as in `docker compose rm`."""
    return 2 if words[1] in ("compose", "container", "volume", "stack", "image") else 1


def _codes_of(stage: _Stage, command: SimpleCommand) -> Iterator[str]:
    words, head = stage
    if _INTERPRETER.match(head):
        for option, text in itertools.pairwise(words):
            if option in _CODE_OPTIONS or re.match(r"^-[a-zA-Z]*[ce]$", option):
                yield text
        if _reads_program(stage):
            yield from command.input
    elif head in ("awk", "gawk", "mawk", "nawk"):
        yield from (word for word in words if "system(" in word or "| " in word)
    elif head in ("vim", "vi", "nvim", "ex"):
        yield from (word.lstrip(":!") for word in words if word.startswith((":!", "!", "+!")))


def _piped_texts(stage: _Stage, pipe: _Pipe, command: SimpleCommand) -> list[str]:
    """Texts that a shell reads from a here-document or from an echo before it in the pipe."""
    if stage.head not in {*_SHELLS, "at", "ssh"}:
        return []
    texts = list(command.input)
    if command.entered == "|" and pipe.last.head in _SAYS_ITS_WORDS:
        texts.append(" ".join(plain(pipe.last.words[1:])))
    return texts


def _reads_program(stage: _Stage) -> bool:
    """Whether a shell or interpreter reads its program from standard input."""
    words, head = stage
    rest = words[1:]
    if "-" in rest or "/dev/stdin" in rest:
        return True
    if head in _SHELLS:
        return "-s" in rest or not (plain(rest) or any(map(_is_command_option, rest)))
    given = {"-m", *_CODE_OPTIONS}.intersection(rest)
    return not given and not plain(rest) and not any(re.match(r"^-\w*[cemn]", x) for x in rest)


def _runs_files(stage: _Stage) -> bool:
    return stage.head in {*_SHELLS, *_SOURCES} or _INTERPRETER.match(stage.head) is not None


def _runs_texts(stage: _Stage) -> bool:
    if stage.head in _SOURCES:
        return True
    return stage.head in _SHELLS and _is_command_option(stage.words[-1])


# --- files, data, keys


def _of_files(command: SimpleCommand) -> Iterator[Danger]:
    targets = list(command.written_to)
    if command.words and basename(command.words[0]) in ("tee", "sponge"):
        targets += command.words[1:]
    for target in targets:
        if DISK.match(target):
            yield Danger(Why.DISK)
        if SYSTEM_FILES.match(target) or target == "/proc/sysrq-trigger":
            yield Danger(Why.SYSTEM)
    head = basename(command.words[0]) if command.words else ""
    said = command.words if head not in ("echo", "printf", "git", "grep", "rg") else ()
    files = [*targets, *command.read_from]
    if any(_KEYS.search(word[:_TEXT_CHARS_MAX]) for word in (*said, *files)):
        yield Danger(Why.KEYS)
    words = [word[:_TEXT_CHARS_MAX] for word in (*command.words, *files)]
    if any(_OURSELVES.search(word) for word in words):
        yield Danger(Why.OURSELVES)


def _of_data(stage: _Stage, pipe: _Pipe, command: SimpleCommand) -> Iterator[Danger]:
    words, head = stage
    if head in _READS_TEXT:
        return
    texts = [*words[1:], *command.input]
    is_client = head in _SQL_CLIENTS
    if is_client and command.entered == "|" and pipe.last.head in _SAYS_ITS_WORDS:
        texts += pipe.last.words[1:]
    for text in texts if is_client else words[1:]:
        short = " ".join(text[:_TEXT_CHARS_MAX].split())
        if _DROPS.search(f"{short};" if is_client else short) or (
            is_client
            and any(
                _WITHOUT_WHERE.match(each) and " where " not in f"{each.lower()} "
                for each in short.split(";")
            )
        ):
            yield Danger(Why.DATA)


def _of_sending(stage: _Stage, pipe: _Pipe) -> Iterator[Danger]:
    if stage.head not in _SENDERS:
        return
    pairs = itertools.pairwise(stage.words)
    files = [word for option, word in pairs if option not in _OWN_KEY_OPTIONS]
    if pipe.secret or any(map(_is_secret_file, files)):
        yield Danger(Why.SENDS_KEYS)


def _is_secret_file(word: str) -> bool:
    return _SECRET_FILE.search(word[-300:]) is not None and "://" not in word


def _files_fetched(words: list[str]) -> Iterator[str]:
    for option, value in itertools.pairwise(words):
        if option in ("-o", "-O", "--output", "--output-document", "-d") or (
            re.match(r"^-\w*[oO]$", option) and "://" not in value
        ):
            yield _bare_path(value)
    for word in words:
        if word.startswith(("--output=", "--output-document=")):
            yield _bare_path(word.partition("=")[2])
        elif "://" in word or (not word.startswith("-") and "/" in word):
            yield basename(word.partition("?")[0])


def _bare_path(path: str) -> str:
    return path.removeprefix("./")
