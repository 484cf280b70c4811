"""All settings in one table: key, kind, variable, purpose. Pure.

`docs/configuration.md` explains this table. A project's file cannot set what is marked `own_only`:
the author of a repository must not decide for you which calls need approval, where your words are
sent, or where your sessions are stored. Its other settings take effect at once if they only
tighten, and otherwise when you have approved them (`runtime.project_trust`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto

from bargein.contracts.permission import PermissionMode
from bargein.runtime.key_names import KeyNameWrong, key_sequence

Value = str | int | float | bool | tuple[str, ...]

WAIT_MS_MAX = 1000


class Unfit(ValueError):
    """The value is not of this kind. The message says what would be valid, to end a sentence."""


@dataclass(frozen=True, slots=True)
class Kind:
    """`of` checks a value from a file, `read` parses one from a variable or a flag."""

    of: Callable[[object], Value]
    read: Callable[[str], Value]


def _text(value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise Unfit("give some text in quotes")
    return value


def _count(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise Unfit("give a whole number above 0")
    return value


def _count_read(text: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise Unfit("give a whole number above 0")
    return _count(int(text))


def _seconds(value: object) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < 1e9:
        raise Unfit("give a number of seconds above 0")
    return float(value)


def _seconds_read(text: str) -> float:
    try:
        return _seconds(float(text))
    except ValueError:
        raise Unfit("give a number of seconds above 0") from None


def _wait_ms(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= WAIT_MS_MAX:
        raise Unfit(f"give a whole number of milliseconds from 0 to {WAIT_MS_MAX}")
    return value


def _wait_ms_read(text: str) -> int:
    return _wait_ms(int(text) if text.isascii() and text.isdecimal() else text)


def _dollars(value: object) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < 1e9:
        raise Unfit("give a number of dollars above 0")
    return float(value)


def _dollars_read(text: str) -> float:
    try:
        return _dollars(float(text))
    except ValueError:
        raise Unfit("give a number of dollars above 0") from None


def _days(value: object) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= 36500:
        raise Unfit("give a number of days above 0, 36500 at most")
    return float(value)


def _days_read(text: str) -> float:
    try:
        return _days(float(text))
    except ValueError:
        raise Unfit("give a number of days above 0, 36500 at most") from None


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise Unfit("give true or false, without quotes")
    return value


def _flag_read(text: str) -> bool:
    known = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
    if text.lower() not in known:
        raise Unfit("give 1 or 0")
    return known[text.lower()]


def _texts(value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise Unfit('give a list of texts, such as ["one", "two"]')
    return tuple(value)


def _listed(text: str) -> list[str]:
    """Splits the list in a variable at its commas."""
    return [each.strip() for each in text.split(",") if each.strip()]


def _networks(value: object) -> tuple[str, ...]:
    import ipaddress

    names = _texts(value)
    for name in names:
        try:
            meant = ipaddress.ip_network(name, strict=False)
        except ValueError:
            raise Unfit(f"{name!r} is no network; write it like 10.0.0.0/8 or fd00::/8") from None
        if "/" in name and meant.network_address != ipaddress.ip_address(name.partition("/")[0]):
            raise Unfit(f"{name!r} has bits beyond its length; did you mean {meant}?")
    return names


def _choice(*choices: str) -> Kind:
    def of(value: object) -> str:
        if value not in choices:
            raise Unfit(f"give one of {', '.join(choices)}")
        return str(value)

    return Kind(of, of)


def _keys(value: object) -> tuple[str, ...]:
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list) or not names:
        raise Unfit('give a key such as "ctrl-x", or a list of keys')
    for name in names:
        try:
            key_sequence(name)
        except KeyNameWrong as wrong:
            raise Unfit(str(wrong)) from None
    return tuple(names)


TEXT = Kind(_text, _text)
COUNT = Kind(_count, _count_read)
SECONDS = Kind(_seconds, _seconds_read)
WAIT_MS = Kind(_wait_ms, _wait_ms_read)
DOLLARS = Kind(_dollars, _dollars_read)
DAYS = Kind(_days, _days_read)
FLAG = Kind(_flag, _flag_read)
TEXTS = Kind(_texts, lambda text: tuple(_listed(text)))
NETWORKS = Kind(_networks, lambda text: _networks(_listed(text)))
KEYS = Kind(_keys, lambda text: _keys(_listed(text)))


class Tightens(Enum):
    """Which values of a setting allow an agent or a project's author no more than the default."""

    NEVER = auto()
    LOWER = auto()
    """Values not above the default; all values if there is none."""
    ALWAYS = auto()


@dataclass(frozen=True, slots=True)
class Setting:
    key: str
    kind: Kind
    help: str
    default: Value | None = None
    own_only: bool = False
    named: str = ""
    project_may: tuple[str, ...] | None = None
    """The values that a project's file may set, tightest first. One takes effect only if it is
    tighter than your own."""
    tightens: Tightens = Tightens.NEVER

    def only_tightens(self, value: Value) -> bool:
        """Returns whether a project's file may set this without the user's approval."""
        if self.tightens is Tightens.LOWER:
            # Values of one kind can be compared.
            return self.default is None or value <= self.default  # type: ignore[operator]
        return self.tightens is Tightens.ALWAYS

    @property
    def variable(self) -> str:
        """The environment variable for this setting."""
        return self.named or f"BARGEIN_{self.key.replace('.', '_').upper()}"


ACTIONS: Mapping[str, tuple[tuple[str, ...], str]] = {
    "send": (("enter",), "send the line; while busy, as `chat.enter` says"),
    "newline": (("alt-enter", "ctrl-j"), "begin a new line"),
    "queue": (("tab",), "while busy: queue the line; else complete"),
    "stop": (("escape",), "close a menu; else stop the turn"),
    "interrupt": (("ctrl-c",), "clear the line; else stop the turn; else leave"),
    "leave": (("ctrl-d",), "leave, if the line is empty"),
    "edit_last": (("alt-up",), "take the last waiting message back into the line"),
    "background": (("ctrl-b",), "move the running call to the background"),
    "expand": (("ctrl-o",), "show all that the last call changed or gave back"),
    "editor": (("ctrl-g",), "write in your editor"),
    "suspend": (("ctrl-z",), "suspend the program"),
    "mode": (("shift-tab",), "the next permission mode: plan, ask, auto-edit"),
}

SETTINGS: tuple[Setting, ...] = (
    Setting("model", TEXT, "the model; without it, the best one found"),
    Setting("home", TEXT, "the data directory, which holds the sessions", own_only=True),
    Setting(
        "store", TEXT, "where sessions are stored instead, such as postgresql://...", own_only=True
    ),
    Setting(
        "cluster.shared_files",
        FLAG,
        "all nodes have the same workspace, for example on a network file system",
        default=False,
        own_only=True,
    ),
    Setting(
        "cluster.address", TEXT, "where other nodes reach this one, as HOST or HOST:PORT", "", True
    ),
    Setting(
        "openai_base_url", TEXT, "the address of openai: models", None, True, "OPENAI_BASE_URL"
    ),
    Setting(
        "anthropic_base_url",
        TEXT,
        "the address of anthropic: models",
        None,
        True,
        "ANTHROPIC_BASE_URL",
    ),
    Setting("context_tokens", COUNT, "how many tokens the model reads, if that is not known"),
    Setting("instructions", TEXT, "instructions for the model, besides our own"),
    Setting("price", TEXT, "dollars for a million tokens: input,output,cached", own_only=True),
    Setting("budget.steps", COUNT, "how many steps a turn may take", 500, tightens=Tightens.LOWER),
    Setting("budget.tokens", COUNT, "how many tokens a turn may use", tightens=Tightens.LOWER),
    Setting("budget.cost", DOLLARS, "how many dollars a turn may cost", tightens=Tightens.LOWER),
    Setting("budget.time_s", SECONDS, "how long a turn may take", tightens=Tightens.LOWER),
    Setting(
        "session_budget.steps",
        COUNT,
        "the same for all turns of a session: steps",
        tightens=Tightens.LOWER,
    ),
    Setting("session_budget.tokens", COUNT, "tokens", tightens=Tightens.LOWER),
    Setting("session_budget.cost", DOLLARS, "dollars", tightens=Tightens.LOWER),
    Setting("session_budget.time_s", SECONDS, "time", tightens=Tightens.LOWER),
    Setting(
        "chat.enter",
        _choice("steer", "queue", "interrupt"),
        "what Enter does while the agent works",
        "steer",
    ),
    Setting(
        "retention.sessions_days", DAYS, "delete sessions that were unused for so long", None, True
    ),
    Setting("retention.audit_days", DAYS, "how long the server keeps its audit log", None, True),
    Setting(
        "retention.traces_days", DAYS, "the same for entries about deleted sessions", None, True
    ),
    Setting(
        "retention.replies_days",
        DAYS,
        "how long a repeated request gets the same answer",
        1.0,
        True,
    ),
    Setting(
        "checkpoints.enabled",
        FLAG,
        "take snapshots of the workspace around calls, so that an undo can put files back",
        default=True,
        own_only=True,
    ),
    Setting("checkpoints.keep_days", DAYS, "how long snapshots are kept", 14.0, True),
    Setting(
        "checkpoints.megabytes_max",
        COUNT,
        "how much room the snapshots of a workspace may take",
        2048,
        True,
    ),
    Setting(
        "checkpoints.files_max", COUNT, "a workspace with more files is not covered", 250_000, True
    ),
    Setting("checkpoints.file_megabytes_max", COUNT, "a larger file is not covered", 16, True),
    Setting(
        "chat.host",
        FLAG,
        "let a host run the sessions of all terminals, so that they go on without this one",
        default=True,
        own_only=True,
    ),
    Setting(
        "host.linger_s",
        SECONDS,
        "how long a host stays when nothing runs and nobody is connected",
        60.0,
        True,
    ),
    Setting(
        "share.address",
        TEXT,
        "where guests of shared chats come in: an IP address of this machine, with a port or not",
        own_only=True,
    ),
    Setting("chat.plain", FLAG, "line by line, for screen readers", default=False),
    Setting(
        "chat.leave",
        _choice("ask", "keep", "stop"),
        "what becomes of a turn on a server that the terminal leaves: ask first, keep or stop it",
        "ask",
    ),
    Setting(
        "chat.notify",
        _choice("auto", "bell", "osc9", "osc777", "off"),
        "how the terminal tells you that a long turn has ended or that an answer is needed",
        "auto",
    ),
    Setting("chat.notify_after_s", SECONDS, "notify about turns that took longer than this", 20.0),
    Setting("chat.leave_s", SECONDS, "how long leaving may take at most", 5.0),
    Setting(
        "chat.escape_wait_ms",
        WAIT_MS,
        "how long Escape waits for the rest of a key, for lines that deliver keys in pieces",
        0,
    ),
    Setting(
        "tools.command_timeout_s",
        SECONDS,
        "how long a command may run",
        600.0,
        tightens=Tightens.LOWER,
    ),
    Setting(
        "tools.python_timeout_s", SECONDS, "how long code may run", 600.0, tightens=Tightens.LOWER
    ),
    Setting(
        "tools.search_timeout_s",
        SECONDS,
        "how long a search may take",
        20.0,
        tightens=Tightens.LOWER,
    ),
    Setting(
        "tools.web_timeout_s", SECONDS, "how long a page may take", 30.0, tightens=Tightens.LOWER
    ),
    Setting(
        "tools.background_max",
        COUNT,
        "how many background processes a session may have",
        16,
        tightens=Tightens.LOWER,
    ),
    Setting(
        "tools.environment_allowed", TEXTS, "secret-looking variables that commands get", (), True
    ),
    Setting(
        "tools.web_networks_allowed", NETWORKS, "networks web_fetch may reach besides", (), True
    ),
    Setting(
        "sandbox.hide_data",
        FLAG,
        "keep commands from Bargein's own files, and from processes started outside",
        default=True,
        own_only=True,
    ),
    Setting(
        "sandbox.commands",
        _choice("on", "off"),
        "run the agent's commands and code in a sandbox; to leave it takes your approval",
        "off",
        project_may=("on",),
    ),
    Setting(
        "sandbox.mcp",
        _choice("on", "off"),
        "start MCP servers that are programs in the sandbox, with the network of sandbox.network",
        "off",
        project_may=("on",),
    ),
    Setting(
        "sandbox.outside",
        _choice("ask", "never"),
        "whether commands may leave the sandbox, with your approval",
        "ask",
        project_may=("never",),
    ),
    Setting(
        "sandbox.network",
        _choice("none", "all"),
        "the network that commands in the sandbox have",
        "none",
        project_may=("none",),
    ),
    Setting(
        "sandbox.hosts",
        TEXTS,
        "hosts that commands in the sandbox reach through a proxy: example.com, *.example.com",
        (),
        own_only=True,
    ),
    Setting(
        "sandbox.writable",
        TEXTS,
        "folders besides the workspace that commands in the sandbox may write to",
        (),
        own_only=True,
    ),
    Setting(
        "sandbox.hidden",
        TEXTS,
        "paths that commands in the sandbox do not see, besides the known secrets",
        (),
        tightens=Tightens.ALWAYS,
    ),
    Setting(
        "sandbox.staged",
        _choice("on", "off"),
        "let new sessions work in a copy of the workspace, until you accept what they changed",
        "off",
        project_may=("on",),
    ),
    Setting(
        "sandbox.stage_megabytes_max",
        COUNT,
        "a larger workspace is not copied for staged turns",
        4096,
        own_only=True,
    ),
    Setting(
        "limits.memory_megabytes",
        COUNT,
        "how much memory a command may use",
        tightens=Tightens.LOWER,
    ),
    Setting(
        "limits.processes",
        COUNT,
        "how many processes a command may have at a time",
        tightens=Tightens.LOWER,
    ),
    Setting(
        "limits.cpu_s",
        COUNT,
        "how many seconds of CPU time each process of a command may use",
        tightens=Tightens.LOWER,
    ),
    Setting(
        "limits.file_megabytes",
        COUNT,
        "how large a file a command may write",
        tightens=Tightens.LOWER,
    ),
    Setting(
        "limits.tmp_megabytes",
        COUNT,
        "how much a session may keep in the /tmp of the sandbox, which is in memory then",
        own_only=True,
    ),
    Setting(
        "mode",
        _choice(*PermissionMode),
        "what runs unasked: plan (read only), ask, auto-edit, or full (nothing is asked)",
        "ask",
        project_may=("plan", "ask"),
        tightens=Tightens.ALWAYS,
    ),
    Setting(
        "approval.deny",
        TEXTS,
        "calls that are refused: TOOL, or TOOL PATTERN",
        (),
        tightens=Tightens.ALWAYS,
    ),
    Setting("approval.ask", TEXTS, "calls you are asked about", (), tightens=Tightens.ALWAYS),
    Setting("approval.allow", TEXTS, "calls that run without asking", (), own_only=True),
    Setting(
        "openai_questions",
        _choice("error", "refuse", "allow", "wait"),
        "what happens to questions in turns of OpenAI clients (`serve`)",
        "error",
        own_only=True,
    ),
    *(Setting(f"keys.{name}", KEYS, words, keys) for name, (keys, words) in ACTIONS.items()),
)

BY_KEY = {setting.key: setting for setting in SETTINGS}
