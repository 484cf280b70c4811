"""Models that run on this machine: the embedded one, and files of the user's own.

`LocalModel` is the whole; `LocalEndpoint` is what a chain of models is made of. The weights are
fetched when first needed (`weights`), the runtime is a child process (`child`, `runtime`), and
what takes time is told as notices (`notices`). docs/local-model.md is the user's view.
"""

from bargein.models.local.endpoint import LocalEndpoint
from bargein.models.local.errors import (
    LocalModelError,
    ModelFileError,
    RuntimeFailed,
    RuntimeMissing,
    WeightsDamaged,
    WeightsUnavailable,
)
from bargein.models.local.model import LocalModel
from bargein.models.local.notices import (
    Died,
    Fetching,
    Loading,
    Notice,
    OnNotice,
    Reading,
    Ready,
    Stopped,
    TooSmall,
    Unpacking,
    Waiting,
)
from bargein.models.local.options import LocalOptions, default_weights_dir
from bargein.models.local.runtime import RuntimeSettings
from bargein.models.local.weights import Weights

__all__ = [
    "Died",
    "Fetching",
    "Loading",
    "LocalEndpoint",
    "LocalModel",
    "LocalModelError",
    "LocalOptions",
    "ModelFileError",
    "Notice",
    "OnNotice",
    "Reading",
    "Ready",
    "RuntimeFailed",
    "RuntimeMissing",
    "RuntimeSettings",
    "Stopped",
    "TooSmall",
    "Unpacking",
    "Waiting",
    "Weights",
    "WeightsDamaged",
    "WeightsUnavailable",
    "default_weights_dir",
]
