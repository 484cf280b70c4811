"""Words that are a command to the session and not a message to the model.

The same words mean the same everywhere a person can type: in the terminal, on the page, through
the API. A bare `stop` is one, because that is what people say when they want it to stop.
"""

from enum import StrEnum

__all__ = ["CHAT_COMMANDS_HELP", "ChatCommand", "chat_command_of"]


class ChatCommand(StrEnum):
    STOP = "stop"
    """Stop the running turn; what waits is held."""
    STATUS = "status"
    """Say what is going on."""
    HELP = "help"
    """Say what can be said."""


CHAT_COMMANDS_HELP = """\
/stop    stop the answer; what waits is held (a bare "stop" does the same)
/status  what is going on, and what waits
/help    this
Anything else is a message. While a turn runs it joins it, unless its mode says otherwise."""

_BARE = frozenset({"stop"})
_LONGEST = max(len(each) for each in ChatCommand) + 8


def chat_command_of(text: str) -> ChatCommand | None:
    """The command that a message is, if it is one and nothing else."""
    if len(text) > 4 * _LONGEST:
        return None
    word = text.strip().casefold()
    if word.startswith("/"):
        try:
            return ChatCommand(word[1:])
        except ValueError:
            return None
    return ChatCommand.STOP if word.rstrip(".!") in _BARE else None
