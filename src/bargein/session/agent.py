"""The built-in agent: context, model, tools side by side, again. A plain loop."""

import msgspec

from bargein.contracts.model import Model, ModelRequest
from bargein.contracts.tool import Toolbox
from bargein.errors import WorldError
from bargein.session.turn import AgentFunction, Turn

STEER_WITHDRAWN = "[You were cut short by a message that was taken back. Go on.]"


class LoopSettings(msgspec.Struct, frozen=True):
    instructions: str = ""
    steps_max: int = 200
    output_tokens_max: int | None = None
    temperature: float | None = None


class StepsUsedUp(WorldError):
    """The turn asked the model as often as it may. The user can go on with a new message."""


def loop_agent(model: Model, toolbox: Toolbox, settings: LoopSettings) -> AgentFunction:
    """An agent that asks `model` and runs its calls until it has nothing more to do."""

    async def agent(turn: Turn) -> None:
        for _ in range(settings.steps_max):
            request = ModelRequest(
                messages=turn.history(),
                system=settings.instructions,
                tools=toolbox.schemas(),
                output_tokens_max=settings.output_tokens_max,
                temperature=settings.temperature,
            )
            asked = await turn.ask_model(model, request)
            if asked.calls:
                await turn.run_calls(toolbox, asked.calls)
            steers = await turn.boundary()
            if asked.cut and asked.message.content and not steers:
                turn.tell(STEER_WITHDRAWN)
            if not (asked.calls or asked.cut or steers):
                return
        raise StepsUsedUp(
            f"the turn took {settings.steps_max} steps and was ended; send a message to go on",
            retryable=False,
        )

    return agent
