"""The folder and the model of a session. Plain data, stored in the session's log."""

from bargein.contracts.value import Value


class SessionPlace(Value, frozen=True):
    """A session's folder and model. `workspace` is an absolute path; empty means the folder of the
    engine's own agent. `model` is a name such as `openai:gpt-5-mini`; empty means the one that the
    folder's settings name, or the best found. `staged`: the session works in a copy of the folder,
    until its changes are accepted."""

    workspace: str
    model: str = ""
    staged: bool = False
