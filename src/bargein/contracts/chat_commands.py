"""Typed words that are a command to the session, not a message to the model.

They mean the same wherever a person can type: in the terminal, on the page, through the API. A bare
`stop` is a command, because that is what people type when they want the agent to stop.
"""

from enum import StrEnum

__all__ = ["CHAT_COMMANDS_HELP", "ChatCommand", "chat_command_of"]


class ChatCommand(StrEnum):
    STOP = "stop"
    """Stop the running turn and hold the waiting messages."""
    STATUS = "status"
    """Show what the session is doing."""
    HELP = "help"
    """Show the commands."""


CHAT_COMMANDS_HELP = """\
/stop    stop the answer and hold the waiting messages (a bare "stop" does the same)
/status  show what the session is doing and which messages wait
/help    show this
Anything else is a message. It joins the running turn, unless its mode says otherwise."""

_BARE = frozenset({"stop"})
_LONGEST = max(len(each) for each in ChatCommand) + 8


def chat_command_of(text: str) -> ChatCommand | None:
    """Return the command if the whole text is one, else None."""
    if len(text) > 4 * _LONGEST:
        return None
    word = text.strip().casefold()
    if word.startswith("/"):
        try:
            return ChatCommand(word[1:])
        except ValueError:
            return None
    return ChatCommand.STOP if word.rstrip(".!") in _BARE else None
