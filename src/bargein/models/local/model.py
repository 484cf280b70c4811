"""The local model as a `Model`, for programs that need no other."""

from bargein.cancel import Token
from bargein.models.local.endpoint import LocalEndpoint
from bargein.models.local.options import LocalOptions
from bargein.models.retrying import RetryingModel
from bargein.models.settings import ModelSettings
from bargein.process import Process


class LocalModel(RetryingModel):
    """`LocalModel()` is the embedded model, `LocalModel(path="x.gguf")` your own file.

    The embedded model is real, and tiny: it talks but cannot use tools, and a notice says so.
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
