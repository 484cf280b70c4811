"""`ask`: put a question to the person, and wait for the answer.

The question is a step of the turn with an id of its own: only an answer with that id answers it,
what the person types otherwise goes where messages go, and a stop ends the wait.
"""

from typing import Any

from bargein.contracts.tool import Effect
from bargein.errors import ModelMisbehaved
from bargein.tools.context import ToolContext
from bargein.tools.declaration import Tool, ToolOptions

__all__ = ["NAME", "ask_tool"]

NAME = "ask"
CHOICES_MAX = 20


async def ask(
    question: str, context: ToolContext, choices: list[str] | None = None, detail: str = ""
) -> str:
    """Ask the person a question and wait for the answer.

    Only for what the person alone can know or decide; look things up yourself. One question at a
    time.

    Args:
        question: One sentence.
        choices: Answers to choose from; leave it out for an answer in free words.
        detail: What the person should know to answer.
    """
    offered = tuple(choices or ())
    if not question.strip():
        raise ModelMisbehaved("the question is empty; ask something")
    if len(offered) > CHOICES_MAX or len(set(offered)) < len(offered):
        raise ModelMisbehaved(f"give at most {CHOICES_MAX} choices, no two of them the same")
    return await context.ask(question, choices=offered, detail=detail)


def ask_tool() -> Tool[..., Any]:
    options = ToolOptions(effect=Effect.NONE, subject="question")
    return Tool(ask, NAME, options)
