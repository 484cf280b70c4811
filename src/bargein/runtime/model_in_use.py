"""The model that an engine uses, which can change while it runs.

Requests after the change go to the new model; a request in flight stays with the old one.
"""

from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING

from bargein.cancel import Token
from bargein.contracts.model import Model
from bargein.models.choice import choose_model
from bargein.models.local.notices import RuntimeStopped, WhyStopped
from bargein.models.local.options import LocalOptions
from bargein.models.naming import resolve_model

if TYPE_CHECKING:
    from bargein.process import Hiding
    from bargein.runtime.config import Config

# We stopped the local model ourselves, so the user needs no notice.
CLOSED = RuntimeStopped(WhyStopped.CLOSED)


class ModelInUse:
    """Closes every model it used with `stack`. `why` says in a few words why it uses this one."""

    def __init__(
        self,
        config: "Config",
        stack: AsyncExitStack,
        hiding: "Hiding",
        on_notice: Callable[[str], object] | None,
    ) -> None:
        def tell(notice: object) -> None:
            if on_notice is not None and notice != CLOSED:
                on_notice(str(notice))

        self._settings = config.models
        self._stack = stack
        self._local = LocalOptions(hiding=hiding, environment=config.environment, on_notice=tell)
        self._model: Model | None = None
        self._named: dict[str, Model] = {}
        self.why = ""

    @property
    def model(self) -> Model:
        assert self._model is not None, "no model was chosen yet"
        return self._model

    @property
    def takes_tools(self) -> bool:
        """False if the model is known to be unable to use tools, so that it gets none."""
        return self.can_use_tools(self.model)

    def can_use_tools(self, model: Model) -> bool:
        """The same of any model."""
        endpoints = getattr(model, "endpoints", ())
        known = [getattr(endpoint, "reads_tools", None) for endpoint in endpoints]
        return not known or any(each is not False for each in known)

    async def begin(self, wanted: str | Model | None, token: Token) -> None:
        """Takes the wanted model, or else the best available one."""
        if wanted is not None and not isinstance(wanted, str):
            self._take(wanted, "it was given")
        elif wanted is not None:
            self.use(wanted)
        else:
            model, choice = await choose_model(self._settings, token, local=self._local)
            self._take(model, choice.why)

    def use(self, name: str) -> None:
        """Changes to the model of that name. Raises a `UserError` that says how to name one."""
        self._take(resolve_model(name, self._settings, local=self._local), "it was named")

    def like(self, wanted: str | Model | None, parent: Callable[[], Model]) -> Callable[[], Model]:
        """Returns a function that gives a sub-agent its model: its own, or its parent's."""
        if wanted is None:
            return parent
        if isinstance(wanted, str):
            return partial(self.named, wanted)
        self._stack.push_async_callback(wanted.aclose)
        return lambda: wanted

    def named(self, name: str) -> Model:
        """Returns the model of that name, for sub-agents; the same object each time."""
        if name not in self._named:
            model = resolve_model(name, self._settings, local=self._local)
            self._stack.push_async_callback(model.aclose)
            self._named[name] = model
        return self._named[name]

    async def warm_up(self, token: Token) -> None:
        """Loads a model that runs on this machine before its first request."""
        await self.warm(self.model, token)

    async def warm(self, model: Model, token: Token) -> None:
        """The same for a model that a place names."""
        for endpoint in getattr(model, "endpoints", ()):
            warm_up = getattr(endpoint, "warm_up", None)
            if warm_up is not None:
                await warm_up(token)

    def _take(self, model: Model, why: str) -> None:
        self._stack.push_async_callback(model.aclose)
        self._model, self.why = model, why
