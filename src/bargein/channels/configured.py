"""The channels that the operator has configured: `channels.json` in the user's config directory.

    {"channels": {"home": {"kind": "telegram", "token": "${TELEGRAM_TOKEN}"}}}

`${VAR}` stands for a variable of the environment. A project's files cannot name channels, because
anybody who can write them could let strangers in. Two channels never share a token, because a
platform has one reader for each token.
"""

import importlib
import re
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import msgspec

from bargein.channels.contract import Channel
from bargein.contracts.value import Value
from bargein.errors import UserError
from bargein.stores.user_file import UserFile

FILE: Final = "channels.json"
TABLE: Final = "channels"
FOLDER: Final = "channels"
"""In the data directory: what adapters keep themselves, such as keys of encrypted rooms."""

_VARIABLE: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,31}")

Content = dict[str, Any]


class Option(Value, frozen=True):
    """One thing that a kind of channel must or may know. `secret`: it is never shown."""

    name: str
    help: str
    secret: bool = False
    required: bool = False


class PlatformKind(Value, frozen=True):
    """A platform. `module` has `open_channel(name, options, folder)` and is imported when one is
    opened; `library` is what it needs, and `extra` brings it."""

    name: str
    module: str
    library: str
    extra: str
    options: tuple[Option, ...]
    identity: str = "token"
    """The option that no two channels may share."""


KINDS: Final = {
    kind.name: kind
    for kind in (
        PlatformKind(
            "matrix",
            "bargein.channels.matrix",
            "nio",
            "matrix",
            (
                Option("homeserver", "its address, such as https://matrix.org", required=True),
                Option("user", "the bot's full name, such as @bot:matrix.org", required=True),
                Option("token", "an access token of the bot's", secret=True, required=True),
                Option("device", "the device of that token, for encrypted rooms"),
                Option("invites", "people and servers whose invitations it accepts"),
                Option("per_s", "calls a second that the homeserver allows; 0.2 if not said"),
            ),
        ),
        PlatformKind(
            "telegram",
            "bargein.channels.telegram",
            "telegramify_markdown",
            "telegram",
            (
                Option("token", "from @BotFather", secret=True, required=True),
                Option("webhook", "the public address of /channels/NAME; polls without"),
                Option("secret", "what Telegram shows at the webhook", secret=True),
                Option("api", "the address of another Bot API server"),
            ),
        ),
        PlatformKind(
            "slack",
            "bargein.channels.slack",
            "slack_sdk",
            "slack",
            (
                Option("token", "the bot's token, xoxb-...", secret=True, required=True),
                Option("app_token", "for socket mode, xapp-...", secret=True),
                Option("signing_secret", "for requests to /channels/NAME", secret=True),
                Option("api", "the address of another Web API"),
            ),
        ),
        PlatformKind(
            "discord",
            "bargein.channels.discord",
            "aiohttp",
            "discord",
            (
                Option("token", "the bot's token", secret=True, required=True),
                Option("public_key", "of the application, for requests to /channels/NAME"),
                Option("api", "the address of another API"),
            ),
        ),
    )
}


class ConfiguredChannel(msgspec.Struct, frozen=True):
    """`options` are as they are written: a variable is filled in when the channel is opened."""

    name: str
    kind: PlatformKind
    options: dict[str, str]

    def open(self, environment: Mapping[str, str], home: Path) -> Channel:
        """Raises `UserError` if the library is missing or an option is wrong."""
        if find_spec(self.kind.library) is None:
            raise UserError(
                f"channel {self.name}: the library for {self.kind.name} is not installed; run  "
                f"pip install 'bargein[{self.kind.extra}]'"
            )
        filled = {key: self._filled(key, environment) for key in self.options}
        module = importlib.import_module(self.kind.module)
        opened: Channel = module.open_channel(self.name, filled, home / FOLDER / self.name)
        return opened

    def identity(self, environment: Mapping[str, str]) -> str:
        """What no two channels of a platform may share, with its variables filled in."""
        return self._filled(self.kind.identity, environment)

    def _filled(self, key: str, environment: Mapping[str, str]) -> str:
        def replaced(found: re.Match[str]) -> str:
            given = environment.get(found[1])
            if not given:
                raise UserError(f"channel {self.name}: {key} needs the variable {found[1]}; set it")
            return given

        return _VARIABLE.sub(replaced, self.options[key])


class ChannelsFile:
    """`folder` is the user's config directory. Only this user can read the file."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE
        self._file = UserFile(self.path, Content, {}, mends="repair it")

    def read(self) -> list[ConfiguredChannel]:
        return self._checked(self._file.read())

    def _checked(self, content: Content) -> list[ConfiguredChannel]:
        table = content.get(TABLE) or {}
        if not isinstance(table, dict):
            raise UserError(f"{self.path}: {TABLE} is not a table of channels by their names")
        found = [channel_of(str(self.path), name, spec) for name, spec in table.items()]
        seen: dict[tuple[str, str], str] = {}
        for each in found:
            key = each.kind.name, each.options[each.kind.identity]
            other = seen.setdefault(key, each.name)
            if other != each.name:
                raise UserError(
                    f"{self.path}: {other} and {each.name} have the same {each.kind.identity}; a "
                    f"bot has one reader, so remove one of them"
                )
        return found

    def add(self, channel: ConfiguredChannel, *, replace: bool) -> None:
        def added(content: Content) -> Content:
            table = dict(content.get(TABLE) or {})
            if channel.name in table and not replace:
                raise UserError(
                    f"{self.path} has a channel {channel.name} already; --replace replaces it"
                )
            spec = {"kind": channel.kind.name, **channel.options}
            after = {**content, TABLE: {**table, channel.name: spec}}
            self._checked(after)
            return after

        self._file.change(added)

    def remove(self, name: str) -> None:
        def without(content: Content) -> Content:
            table = dict(content.get(TABLE) or {})
            if name not in table:
                raise UserError(
                    f"{self.path} has no channel {name}; `bargein channels list` has them all"
                )
            del table[name]
            return {**content, TABLE: table}

        self._file.change(without)


def channel_of(where: str, name: str, spec: object) -> ConfiguredChannel:
    """Checks one channel as it is written. Raises `UserError`."""
    where = f"{where}: channel {name}"
    if _NAME.fullmatch(name) is None:
        raise UserError(f"{where}: a name has lower-case letters, digits, - and _, 32 at most")
    if not isinstance(spec, dict) or not all(isinstance(each, str) for each in spec.values()):
        raise UserError(f"{where}: it must be a table of texts")
    kind = KINDS.get(spec.get("kind", ""))
    if kind is None:
        raise UserError(f"{where}: kind is one of {', '.join(KINDS)}, not {spec.get('kind')!r}")
    options = {key: value for key, value in spec.items() if key != "kind"}
    known = {option.name for option in kind.options}
    for key in options:
        if key not in known:
            raise UserError(f"{where}: {kind.name} has no {key!r}; it has {', '.join(known)}")
    for option in kind.options:
        if option.required and not options.get(option.name):
            raise UserError(f"{where}: {option.name} is missing ({option.help})")
    return ConfiguredChannel(name, kind, options)
