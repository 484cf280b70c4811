"""The built-in agent: context, model, tools side by side, again. A plain loop.

Between two steps it asks the turn whether a budget is used up, and before each request whether the
conversation still fits into what the model can read; if not, the older part is summarised first.
"""

from collections.abc import Awaitable, Callable
from functools import partial

import msgspec

from bargein.cancel import Token
from bargein.contracts.budget import Budget
from bargein.contracts.model import ContextExceeded, Model, ModelRequest
from bargein.contracts.tool import Toolbox
from bargein.errors import WorldError
from bargein.session.compress import Compressor
from bargein.session.turn import Asked, Turn

STEER_WITHDRAWN = "[You were cut short by a message that was taken back. Go on.]"
STEPS_MAX = 500

ReadContext = Callable[[Token], Awaitable[str]]
"""Gives what else belongs into the system text, as it is when a turn begins."""


class LoopSettings(msgspec.Struct, frozen=True):
    """`budget` is for each turn, `session_budget` for all of them together. `compress_at` is the
    share of what the model can read from which on the older part is summarised."""

    instructions: str = ""
    budget: Budget = Budget(steps=STEPS_MAX)
    session_budget: Budget = Budget()
    compress_at: float = 0.8
    output_tokens_max: int | None = None
    temperature: float | None = None


class LoopAgent:
    """Asks `model` and runs its calls until it has nothing more to do. For many sessions. The model
    may be changed while it runs: from its next step on a turn asks the new one."""

    def __init__(
        self,
        model: Model,
        toolbox: Toolbox,
        settings: LoopSettings,
        read_context: ReadContext | None = None,
    ) -> None:
        self.model = model
        self._toolbox = toolbox
        self._settings = settings
        self._read_context = read_context

    async def __call__(self, turn: Turn) -> None:
        settings, toolbox = self._settings, self._toolbox
        turn.limit(settings.budget, settings.session_budget)
        make_request = partial(self._request, turn, await self._system(turn))
        compressor = Compressor(turn, lambda: self.model, at_share=settings.compress_at)
        while True:
            turn.check_budget()
            asked = await self._ask(turn, compressor, make_request)
            if asked.calls:
                await turn.run_calls(toolbox, asked.calls)
            steers = await turn.boundary()
            if asked.cut and asked.message.content and not steers:
                turn.tell(STEER_WITHDRAWN)
            if not (asked.calls or asked.cut or steers):
                return

    async def compact(self, turn: Turn) -> None:
        """A turn of its own that does nothing but compress what was said before it."""
        turn.limit(self._settings.budget, self._settings.session_budget)
        turn.check_budget()
        compressor = Compressor(turn, lambda: self.model, at_share=self._settings.compress_at)
        expected = turn.expected_tokens(self._request(turn, self._settings.instructions))
        limit = min(self.model.context_tokens or expected, expected)
        if not await compressor.compress(limit, must=False) and compressor.failure:
            words = f"the conversation could not be summarised: {compressor.failure}"
            raise WorldError(words, retryable=False)

    async def _ask(
        self, turn: Turn, compressor: Compressor, make_request: Callable[[], ModelRequest]
    ) -> Asked:
        request = await compressor.fit(make_request)
        try:
            return await turn.ask_model(self.model, request)
        except ContextExceeded:
            if not await compressor.refit(request):
                raise
        return await turn.ask_model(self.model, make_request())

    async def _system(self, turn: Turn) -> str:
        parts = [self._settings.instructions, turn.instructions]
        if self._read_context is not None:
            context = await turn.read_context(self._read_context)
            parts.append(
                "[Further instructions could not be read.]" if context is None else context
            )
        return "\n\n".join(part for part in parts if part)

    def _request(self, turn: Turn, system: str) -> ModelRequest:
        return ModelRequest(
            messages=turn.history(),
            system=system,
            tools=self._toolbox.schemas(),
            output_tokens_max=self._settings.output_tokens_max,
            temperature=self._settings.temperature,
        )


def loop_agent(
    model: Model,
    toolbox: Toolbox,
    settings: LoopSettings,
    read_context: ReadContext | None = None,
) -> LoopAgent:
    return LoopAgent(model, toolbox, settings, read_context)
