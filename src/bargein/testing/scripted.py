"""The scripted model, for tests. It is defined in `bargein.models.scripted`."""

from bargein.models.script import (
    Answer,
    Call,
    Check,
    Count,
    Expect,
    Fail,
    Pause,
    Say,
    Script,
    Stop,
    Think,
    Wait,
    load_script,
)
from bargein.models.scripted import Gate, Play, ScriptedEndpoint, ScriptedModel

__all__ = [
    "Answer",
    "Call",
    "Check",
    "Count",
    "Expect",
    "Fail",
    "Gate",
    "Pause",
    "Play",
    "Say",
    "Script",
    "ScriptedEndpoint",
    "ScriptedModel",
    "Stop",
    "Think",
    "Wait",
    "load_script",
]
