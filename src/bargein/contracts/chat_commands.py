"""Typed words that are a command to the session, not a message to the model.

The same words mean the same everywhere a person can type: in the terminal, on the page, through
the API, in a chat program. A bare `stop` is one, in many languages, because that is what people say
when they want it to stop.

`chat_command_of` knows the commands of every surface. `command_line_of` knows all of them: a chat
program has no other buttons and keys for the rest.
"""

from enum import StrEnum
from typing import NamedTuple

__all__ = [
    "CHAT_COMMANDS_HELP",
    "CHAT_PROGRAM_HELP",
    "ChatCommand",
    "CommandLine",
    "chat_command_of",
    "command_line_of",
]


class ChatCommand(StrEnum):
    STOP = "stop"
    """Stop the running turn and hold the waiting messages."""
    STATUS = "status"
    """Show what the session is doing."""
    HELP = "help"
    """Show the commands."""
    QUEUE = "queue"
    """Give the words that follow a turn of their own, later; alone, list what waits."""
    REDIRECT = "redirect"
    """Stop the running turn, then answer the words that follow."""
    CONTINUE = "continue"
    """Let the held messages go on."""
    UNDO = "undo"
    """Take back the last turn."""
    NEW = "new"
    """Begin another session."""


EVERYWHERE = frozenset({ChatCommand.STOP, ChatCommand.STATUS, ChatCommand.HELP})
"""Every surface obeys these. The others have keys, buttons or requests of their own elsewhere."""

CHAT_COMMANDS_HELP = """\
/stop    stop the answer and hold the waiting messages (a bare "stop" does the same)
/status  show what the session is doing and which messages wait
/help    show this
Anything else is a message. It joins the running turn, unless its mode says otherwise."""

CHAT_PROGRAM_HELP = """\
/stop  stop the answer and hold the waiting messages (a bare "stop" does the same)
/queue WORDS  answer this after the running turn; alone: list what waits
/redirect WORDS  stop what runs and answer this
/continue  release the held messages
/undo  take back the last turn
/status  what is going on
/new  begin a new conversation
/help  this
Anything else is a message. While an answer is on its way it joins it."""

_BARE = frozenset(
    """
    stop stopp stoppe halt arrête arrete arrêtez alto basta detente ferma fermati pare parar
    стоп стой остановись хватит зупинись zatrzymaj przestań dur durdur dừng σταμάτα στοπ
    停 停止 停下 停一下 やめて 止めて ストップ 멈춰 중지 그만 توقف قف עצור रुको रुकें หยุด
    """.split()  # noqa: SIM905 - a list of words is read as words
)
_BARE_CHARACTERS_MAX = 32
_ENDS = " .!…。\uff01\u00a1"


class CommandLine(NamedTuple):
    command: ChatCommand
    words: str


def chat_command_of(text: str) -> ChatCommand | None:
    """The command that a message is, if it is one of every surface and nothing else."""
    if len(text) > 4 * _BARE_CHARACTERS_MAX:
        return None
    line = command_line_of(text)
    if line is None or line.words or line.command not in EVERYWHERE:
        return None
    return line.command


def command_line_of(text: str) -> CommandLine | None:
    """The command that a message begins with, and the words after it. Only `/queue` and
    `/redirect` take words: with words after them the others are no commands."""
    text = text.strip()
    if not text.startswith("/"):
        short = len(text) <= _BARE_CHARACTERS_MAX
        is_stop = short and text.casefold().strip(_ENDS) in _BARE
        return CommandLine(ChatCommand.STOP, "") if is_stop else None
    first, *rest = text[1:].split(maxsplit=1) or [""]
    try:
        command = ChatCommand(first.casefold())
    except ValueError:
        return None
    words = rest[0] if rest else ""
    if words and command not in (ChatCommand.QUEUE, ChatCommand.REDIRECT):
        return None
    return CommandLine(command, words)
