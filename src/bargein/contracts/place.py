"""The folder and the model of a session. Plain data, stored in the session's log."""

from bargein.contracts.value import Value


class SessionPlace(Value, frozen=True):
    """A session's folder and model. `workspace` is an absolute path. `model` is a name such as
    `openai:gpt-5-mini`; empty means the one that the folder's settings name, or the best found."""

    workspace: str
    model: str = ""
