"""The built-in agent: context, model, tools side by side, again. A plain loop.

Between two steps it checks whether a budget is used up. Before each request it checks whether the
conversation still fits into the model's context; if not, it summarises the older part first.

If a message of the turn, or the agent, has an output type, the request asks the model for it,
natively if the provider can. The model's last answer is checked. If it does not fit, the model gets
the reason and is asked again, at most `REPAIRS_MAX` times; then the turn fails.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import msgspec
from anyio import to_thread

from bargein.calls import words
from bargein.cancel import Token
from bargein.contracts.budget import Budget
from bargein.contracts.json_schema import StepsExceeded
from bargein.contracts.model import (
    AssistantMessage,
    ContextExceeded,
    Model,
    ModelMessage,
    ModelRequest,
    Text,
)
from bargein.contracts.output import TEXT
from bargein.contracts.output_type import OutputType
from bargein.contracts.permission import PermissionMode
from bargein.contracts.tool import Toolbox
from bargein.errors import WorldError
from bargein.session.compress import Compressor
from bargein.session.turn import Asked, Turn

STEPS_MAX = 500
REPAIRS_MAX = 2
SIDE_TOKENS_MAX = 4000
STEPS_AT_ONCE = 1000
"""Steps of checking an answer before the check moves to a thread."""

ReadContext = Callable[[Token], Awaitable[str]]
"""Returns more text for the system prompt. Called when a turn begins."""

Prepare = Callable[[str, Token], Awaitable[None]]
"""Has the tools of a session ready that take a while, such as those of servers. Bounded."""


class AnswerUnfit(WorldError):
    """The model's answer does not fit what was asked for, even after all repairs."""


class LoopSettings(msgspec.Struct, frozen=True):
    """`budget` is for each turn, `session_budget` for all of them together. `compress_at` is the
    share of the model's context above which the older part is summarised. `output_type` is the
    type of each turn's answer, unless a message says otherwise."""

    instructions: str = ""
    budget: Budget = Budget(steps=STEPS_MAX)
    session_budget: Budget = Budget()
    compress_at: float = 0.8
    output_tokens_max: int | None = None
    temperature: float | None = None
    output_type: OutputType[Any] | None = None


class LoopAgent:
    """Asks `model` and runs its calls until it has nothing more to do. One agent serves many
    sessions. The model may be replaced at any time: a turn uses the new one from its next step
    on."""

    def __init__(
        self,
        model: Model,
        toolbox: Toolbox,
        settings: LoopSettings,
        read_context: ReadContext | None = None,
        prepare: Prepare | None = None,
    ) -> None:
        self.model = model
        self._prepare = prepare
        self._toolbox = toolbox
        self._settings = settings
        self._read_context = read_context

    @property
    def output_type(self) -> OutputType[Any] | None:
        """The type of its answers; None for free text."""
        return self._settings.output_type

    async def __call__(self, turn: Turn) -> None:
        settings, toolbox = self._settings, self._toolbox
        turn.limit(settings.budget, settings.session_budget)
        if self._prepare is not None:
            await turn.prepare_tools(self._prepare)
        make_request = partial(self._request, turn, await self._system(turn))
        compressor = Compressor(turn, lambda: self.model, at_share=settings.compress_at)
        repairs = 0
        while True:
            turn.check_budget()
            asked = await self._ask(turn, compressor, make_request)
            if asked.calls:
                await turn.run_calls(toolbox, asked.calls)
            steers = await turn.boundary()
            if asked.cut and asked.message.content and not steers:
                turn.tell(words.STEER_WITHDRAWN)
            if asked.calls or asked.cut or steers:
                continue
            why = await _why_unfit(self._wanted(turn), asked.message)
            if why is None:
                return
            if repairs == REPAIRS_MAX:
                raise AnswerUnfit(
                    f"the answer does not fit what was asked for, after {repairs} repairs: {why}",
                    retryable=False,
                )
            repairs += 1
            turn.tell(words.OUTPUT_UNFIT.format(why=why))

    async def side_request(
        self, messages: tuple[ModelMessage, ...], instructions: str, token: Token
    ) -> tuple[Model, ModelRequest]:
        """Makes the request for a side question. It begins like those of a turn, so that a provider
        can use its cache. The tools are named because some providers refuse calls of unknown tools
        in the conversation; none is run."""
        settings = self._settings
        parts = [settings.instructions, instructions]
        if self._read_context is not None:
            parts.append(await self._read_context(token))
        request = ModelRequest(
            messages=messages,
            system="\n\n".join(part for part in parts if part),
            tools=self._toolbox.schemas(),
            output_tokens_max=min(settings.output_tokens_max or SIDE_TOKENS_MAX, SIDE_TOKENS_MAX),
            temperature=settings.temperature,
        )
        return self.model, request

    async def compact(self, turn: Turn) -> None:
        """Runs a turn that only summarises the conversation before it."""
        turn.limit(self._settings.budget, self._settings.session_budget)
        turn.check_budget()
        compressor = Compressor(turn, lambda: self.model, at_share=self._settings.compress_at)
        expected = turn.expected_tokens(self._request(turn, self._settings.instructions))
        limit = min(self.model.context_tokens or expected, expected)
        if not await compressor.compress(limit, must=False) and compressor.failure:
            failure = f"the conversation could not be summarised: {compressor.failure}"
            raise WorldError(failure, retryable=False)

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
            parts.append(words.INSTRUCTIONS_UNREAD if context is None else context)
        return "\n\n".join(part for part in parts if part)

    def _wanted(self, turn: Turn) -> OutputType[Any] | None:
        return turn.output_type or self._settings.output_type

    def _request(self, turn: Turn, system: str) -> ModelRequest:
        wanted = self._wanted(turn)
        schema = None
        if turn.mode is PermissionMode.PLAN:
            system = f"{system}\n\n{words.PLAN_MODE}" if system else words.PLAN_MODE
        if wanted is not None and wanted.output != TEXT:
            output = wanted.output
            asked_for = words.OUTPUT_ASKED_FOR.format(name=output.name, schema=output.schema)
            system = f"{system}\n\n{asked_for}" if system else asked_for
            schema = msgspec.Raw(output.schema.encode())
        return ModelRequest(
            messages=turn.history(),
            system=system,
            tools=self._toolbox.schemas(),
            output_tokens_max=self._settings.output_tokens_max,
            temperature=self._settings.temperature,
            response_schema=schema,
        )


async def _why_unfit(wanted: OutputType[Any] | None, said: AssistantMessage) -> str | None:
    if wanted is None:
        return None
    text = "".join(part.text for part in said.content if isinstance(part, Text))
    try:
        return wanted.unfit(text, STEPS_AT_ONCE)
    except StepsExceeded:
        # Also bounded, but longer than other sessions should wait.
        return await to_thread.run_sync(wanted.unfit, text, abandon_on_cancel=True)


def loop_agent(
    model: Model,
    toolbox: Toolbox,
    settings: LoopSettings,
    read_context: ReadContext | None = None,
) -> LoopAgent:
    return LoopAgent(model, toolbox, settings, read_context)
