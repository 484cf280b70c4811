"""Errors of local models, as branches of `bargein.models.errors`.

    UserError
    └── ModelFileError         the file in `local:PATH` cannot be a model
    ModelError
    └── LocalModelError
        ├── RuntimeMissing     the runtime is not installed, or not published for this machine
        ├── WeightsUnavailable the weights could not be fetched or stored
        ├── WeightsDamaged     the fetched file is not the expected one
        └── RuntimeFailed      the runtime did not start, died, or hangs

Each message ends with alternatives: somebody who only wants to talk to a model has other ways to
get one. `require_runtime` checks whether the runtime is installed, and says how to install it.
"""

import importlib.util
import platform
import sys
from typing import Final

from bargein.errors import UserError
from bargein.models.errors import ModelError

INSTEAD: Final = (
    "Instead of the embedded model you can set OPENAI_API_KEY or ANTHROPIC_API_KEY, start a model "
    "server on this machine (Ollama, for example), or name a model file: "
    "BARGEIN_MODEL=local:PATH.gguf."
)
INSTEAD_OF_FILE: Final = (
    "Name another file (BARGEIN_MODEL=local:PATH.gguf), use the embedded model "
    "(BARGEIN_MODEL=local), or set OPENAI_API_KEY or ANTHROPIC_API_KEY."
)


class ModelFileError(UserError):
    """The named file cannot be a model; the message says why."""


class LocalModelError(ModelError):
    """The base class of errors that are not about one request."""

    def __init__(
        self,
        message: str,
        *,
        retryable: bool = False,
        model: str = "local",
        host: str = "this machine",
        status: int | None = None,
        retry_after_s: float | None = None,
        tried: tuple[str, ...] = (),
    ) -> None:
        super().__init__(
            message,
            retryable=retryable,
            model=model,
            host=host,
            status=status,
            retry_after_s=retry_after_s,
            tried=tried,
        )


class RuntimeMissing(LocalModelError):
    """`xllamacpp` is not installed."""


class WeightsUnavailable(LocalModelError):
    """No network, no pip, no disk space or no permission: the message says which."""


class WeightsDamaged(LocalModelError):
    """The sha256 differs. Nothing was kept."""


class RuntimeFailed(LocalModelError):
    """The child did not start, or is gone."""


_MACHINES: Final = {
    "linux": ("x86_64", "amd64", "aarch64", "arm64"),
    "darwin": ("arm64",),
}


def require_runtime(model: str = "local") -> None:
    """Raises `RuntimeMissing` if `xllamacpp` is not installed. Imports nothing."""
    if importlib.util.find_spec("xllamacpp") is None:
        raise missing(model)


def missing(model: str) -> RuntimeMissing:
    kind, machine = sys.platform, platform.machine().lower()
    library, _ = platform.libc_ver()
    if machine not in _MACHINES.get(kind, ()) or (kind == "linux" and library != "glibc"):
        what = f"{platform.system()} on {machine}"
        if kind == "linux" and library != "glibc":
            what += " without glibc"
        return RuntimeMissing(
            f"The runtime of the embedded model, xllamacpp, is not published for {what}. {INSTEAD}",
            model=model,
        )
    return RuntimeMissing(
        "The runtime of the embedded model is not installed. Install it: "
        "pip install 'bargein[local]' (with pipx: pipx inject bargein xllamacpp; "
        f"with uv: uv tool install 'bargein[local]'). {INSTEAD}",
        model=model,
    )


def unloadable(model: str, why: str) -> RuntimeMissing:
    return RuntimeMissing(
        f"The runtime of the embedded model is installed but does not load here ({why}). "
        f"Reinstall it: pip install --force-reinstall xllamacpp. {INSTEAD}",
        model=model,
    )
