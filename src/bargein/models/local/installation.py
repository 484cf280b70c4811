"""Whether the runtime is available on this machine, and how to install it."""

import importlib.util
import platform
import sys
from typing import Final

from bargein.models.local.errors import INSTEAD, RuntimeMissing

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
