"""The local model as a `Model`, for a program that wants it and nothing else."""

from bargein.cancel import Token
from bargein.models.local.endpoint import LocalEndpoint
from bargein.models.local.options import LocalOptions
from bargein.models.retrying import RetryingModel
from bargein.models.settings import ModelSettings
from bargein.process import Process


class LocalModel(RetryingModel):
    """`LocalModel()` is the embedded model, `LocalModel(path="x.gguf")` a file of yours.

    It is real, and tiny: it talks, it cannot drive tools, and it says so in a notice.
    """

    def __init__(
        self,
        settings: ModelSettings | None = None,
        *,
        path: str | None = None,
        options: LocalOptions | None = None,
    ) -> None:
        settings = settings or ModelSettings()
        self.endpoint = LocalEndpoint(settings, path=path, options=options)
        super().__init__([self.endpoint], policy=settings.policy)

    @property
    def process(self) -> Process | None:
        return self.endpoint.process

    async def warm_up(self, token: Token) -> None:
        await self.endpoint.warm_up(token)
