"""The `ask` tool puts a question to the user and waits for the answer.

The question is a step of the turn and has its own id. Only an answer with that id answers it;
anything else the user types is an ordinary message. A stop ends the wait.
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

    Use it only for what the person alone can know or decide; look everything else up yourself. Ask
    one question at a time.

    Args:
        question: One sentence.
        choices: Answers to choose from; leave it out to get an answer in free words.
        detail: What the person needs to know to answer.
    """
    offered = tuple(choices or ())
    if not question.strip():
        raise ModelMisbehaved("the question is empty; ask something")
    if len(offered) > CHOICES_MAX or len(set(offered)) < len(offered):
        raise ModelMisbehaved(f"give at most {CHOICES_MAX} choices, each of them different")
    return await context.ask(question, choices=offered, detail=detail)


def ask_tool() -> Tool[..., Any]:
    options = ToolOptions(effect=Effect.NONE, subject="question")
    return Tool(ask, NAME, options)
