"""Models whose requests stop at once when cancelled.

`resolve_model(name, settings)` returns the model with that name; `choose_model` returns the best
available one if none was named. `bargein.contracts.model` states what holds for all of them, and
docs/lifecycles/request.md describes the life of a request.

Names are imported on first use: the HTTP client is heavy, and neither naming a model nor playing a
script needs it.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bargein.models.choice import Choice as Choice
    from bargein.models.choice import choose_model as choose_model
    from bargein.models.errors import ModelError as ModelError
    from bargein.models.naming import resolve_model as resolve_model
    from bargein.models.retry import RetryPolicy as RetryPolicy
    from bargein.models.retrying import RetryingModel as RetryingModel
    from bargein.models.scripted import ScriptedModel as ScriptedModel
    from bargein.models.settings import ModelSettings as ModelSettings
    from bargein.models.settings import settings_from_environment as settings_from_environment
    from bargein.models.watchdog import Timeouts as Timeouts

_HOMES = {
    "Choice": "choice",
    "ModelError": "errors",
    "ModelSettings": "settings",
    "RetryPolicy": "retry",
    "RetryingModel": "retrying",
    "ScriptedModel": "scripted",
    "Timeouts": "watchdog",
    "choose_model": "choice",
    "resolve_model": "naming",
    "settings_from_environment": "settings",
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'bargein.models' has no attribute {name!r}")
    return getattr(import_module(f"bargein.models.{_HOMES[name]}"), name)
