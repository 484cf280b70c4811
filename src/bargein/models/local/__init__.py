"""Models that run on this machine: the embedded model, and the user's own model files.

`LocalModel` is a complete model; `LocalEndpoint` can be combined with other endpoints. The weights
are fetched on first use (`weights`), a child process runs the model (`child`, `runtime`), and slow
steps are announced by notices (`notices`). docs/local-model.md is the user's view.
"""

from bargein.models.local.endpoint import LocalEndpoint, LocalModel
from bargein.models.local.errors import (
    LocalModelError,
    ModelFileError,
    RuntimeFailed,
    RuntimeMissing,
    WeightsDamaged,
    WeightsUnavailable,
)
from bargein.models.local.notices import (
    Died,
    Fetching,
    Loading,
    Notice,
    OnNotice,
    Reading,
    Ready,
    RuntimeStopped,
    TooSmall,
    Unpacking,
    WaitingForFetch,
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
    "RuntimeStopped",
    "TooSmall",
    "Unpacking",
    "WaitingForFetch",
    "Weights",
    "WeightsDamaged",
    "WeightsUnavailable",
    "default_weights_dir",
]
