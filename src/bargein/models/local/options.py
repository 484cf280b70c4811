"""The options of local models, their defaults, and where a model's file comes from.

The file is either the embedded model's, which Bargein fetches, or the user's own.
"""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Final

from bargein.cancel import Token
from bargein.models.local import child
from bargein.models.local.errors import (
    INSTEAD,
    INSTEAD_OF_FILE,
    ModelFileError,
    RuntimeFailed,
    require_runtime,
)
from bargein.models.local.gguf import read_head
from bargein.models.local.notices import LocalNotices, OnNotice
from bargein.models.local.runtime import ModelSource, RuntimeSettings
from bargein.models.local.weights import SMOLLM2, Weights
from bargein.models.settings import ModelSettings
from bargein.process import Containment, Hiding

# Many models could take more, but the memory for it is allocated at once, used or not.
OWN_FILE_CONTEXT_TOKENS: Final = 8192
# Left alone, a small model repeats itself forever; sampled freely, it talks nonsense.
SMOLLM2_OUTPUT_TOKENS_MAX: Final = 1024
SMOLLM2_SAMPLING: Final = MappingProxyType({"temp": 0.2, "top_p": 0.9, "penalty_repeat": 1.1})


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalOptions:
    """Options for the program that uses the model.

    Without `containment` an endpoint opens its own, which hides the directories of `hiding`.
    `environment` is passed to the programs it starts, such as pip; by default it is this process's
    environment. `command` runs the child.
    """

    containment: Containment | None = None
    hiding: Hiding = Hiding()  # noqa: RUF009 - frozen
    environment: Mapping[str, str] | None = field(default=None, repr=False)
    on_notice: OnNotice | None = None
    runtime: RuntimeSettings = field(default_factory=RuntimeSettings)
    command: tuple[str, ...] = (sys.executable, "-P", str(child.__file__))

    def child_environment(self) -> Mapping[str, str]:
        return os.environ if self.environment is None else self.environment


@dataclass(frozen=True, slots=True)
class LocalPlan:
    """One model to run: which file, and how. `reads_tools` if known before it is loaded."""

    name: str
    source: ModelSource
    runtime: RuntimeSettings
    reads_tools: bool | None = None


def plan_embedded(settings: ModelSettings, options: LocalOptions) -> LocalPlan:
    folder = settings.weights_dir or default_weights_dir()
    runtime = options.runtime
    if runtime.sampling is None:
        runtime = replace(runtime, sampling=SMOLLM2_SAMPLING)
    if runtime.output_tokens_max is None:
        runtime = replace(runtime, output_tokens_max=SMOLLM2_OUTPUT_TOKENS_MAX)
    context_tokens = min(settings.context_tokens or SMOLLM2.context_tokens, SMOLLM2.context_tokens)
    return LocalPlan(
        "local",
        Embedded(Weights(folder, options.child_environment())),
        replace(runtime, context_tokens=context_tokens),
        reads_tools=False,
    )


def plan_own_file(path: str, settings: ModelSettings, options: LocalOptions) -> LocalPlan:
    """Raises `ModelFileError`, a mistake of the user, if the file cannot be a model."""
    name = f"local:{path}"
    file = Path(path).expanduser().absolute()
    head = read_head(file)
    context_tokens = settings.context_tokens or OWN_FILE_CONTEXT_TOKENS
    if head.context_tokens:
        context_tokens = min(context_tokens, head.context_tokens)
    return LocalPlan(
        name, OwnFile(name, file), replace(options.runtime, context_tokens=context_tokens)
    )


def default_weights_dir() -> Path:
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "bargein" / "models"
    return Path.home() / ".local" / "share" / "bargein" / "models"


@dataclass(frozen=True, slots=True)
class Embedded:
    """The weights that Bargein fetches."""

    weights: Weights

    @property
    def instead(self) -> str:
        return INSTEAD

    def check(self) -> None:
        require_runtime()

    async def obtain(self, containment: Containment, token: Token, notices: LocalNotices) -> Path:
        return await self.weights.obtain(containment, token, notices)

    async def repair(self, token: Token) -> bool:
        return await self.weights.repair(token)


@dataclass(frozen=True, slots=True)
class OwnFile:
    """The user's own file. It is read, never written."""

    name: str
    path: Path

    @property
    def instead(self) -> str:
        return INSTEAD_OF_FILE

    def check(self) -> None:
        require_runtime(self.name)

    async def obtain(self, containment: Containment, token: Token, notices: LocalNotices) -> Path:
        # Checked again, because the file may have changed since it was named.
        try:
            read_head(self.path)
        except ModelFileError as error:
            raise RuntimeFailed(str(error), model=self.name) from error
        return self.path

    async def repair(self, token: Token) -> bool:
        return False
