"""Where the model's file comes from: the embedded model's weights, or the user's own file."""

from dataclasses import dataclass
from pathlib import Path

from bargein.cancel import Token
from bargein.models.local.errors import INSTEAD, INSTEAD_OF_FILE, ModelFileError, RuntimeFailed
from bargein.models.local.gguf import read_head
from bargein.models.local.installation import require_runtime
from bargein.models.local.notices import LocalNotices
from bargein.models.local.weights import Weights
from bargein.process import Containment


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
