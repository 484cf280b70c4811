"""Decides for each field of a request: honour it, refuse it with a reason, or ignore it.

The decoder refuses fields that no version of the API has. A field is ignored if it only tunes a
model or its service, because the agent behind this server has its own settings. A field that would
change the meaning of the answer is refused, unless its value asks for nothing. `docs/gateway.md`
has the table; a test compares it with this one.
"""

from collections.abc import Mapping

import msgspec

from bargein.contracts.json_schema import SchemaUnfit
from bargein.contracts.message import QuestionPolicy
from bargein.contracts.output import Output, make_output
from bargein.server.openai.outlet import FieldProblem
from bargein.server.openai.shapes import JsonFormat, SchemaFormat, TextFormat, TextSchemaFormat
from bargein.server.problems import Code

OWN_TOOLS = "the agent runs tools of its own and gives no calls back; leave it out"

REFUSED: dict[str, str] = {
    "audio": "answers are text; leave it out",
    "conversation": "there are no conversations here; go on with previous_response_id",
    "function_call": OWN_TOOLS,
    "functions": OWN_TOOLS,
    "logit_bias": "it cannot be honoured by an agent; leave it out",
    "logprobs": "they are not kept; leave it out",
    "max_tool_calls": "the agent's budget is set by its operator; leave it out",
    "modalities": "answers are text; leave it out",
    "n": "there is one answer; leave it out",
    "prompt": "there are no stored prompts here; send instructions and input",
    "stop": "the answer of an agent is not cut at words; leave it out",
    "tool_choice": OWN_TOOLS,
    "tools": OWN_TOOLS,
    "top_logprobs": "they are not kept; leave it out",
    "web_search_options": "whether the agent searches is its own decision; leave it out",
}
"""Refused with this reason, unless the value is empty or in `HARMLESS`."""

HARMLESS: dict[str, tuple[object, ...]] = {
    "function_call": ("auto", "none"),
    "modalities": (["text"],),
    "n": (1,),
    "tool_choice": ("auto", "none"),
}

IGNORED = frozenset(
    {
        "context_management",
        "frequency_penalty",
        "include",
        "max_completion_tokens",
        "max_output_tokens",
        "max_tokens",
        "min_p",
        "parallel_tool_calls",
        "prediction",
        "presence_penalty",
        "prompt_cache_key",
        "prompt_cache_retention",
        "reasoning",
        "reasoning_effort",
        "repetition_penalty",
        "safety_identifier",
        "seed",
        "service_tier",
        "temperature",
        "top_k",
        "top_p",
        "truncation",
        "user",
        "verbosity",
    }
)


def refuse_fields(body: msgspec.Struct) -> None:
    """Raises `FieldProblem` for the first field that cannot be honoured."""
    for name, why in REFUSED.items():
        value = getattr(body, name, None)
        if value and value not in HARMLESS.get(name, ()):
            raise FieldProblem(Code.BAD_REQUEST, name, why, value=value)


def output_of(
    asked: TextFormat | JsonFormat | SchemaFormat | TextSchemaFormat | None, param: str
) -> Output | None:
    """Returns what the answer must be, or None for free text."""
    match asked:
        case JsonFormat():
            return Output()
        case SchemaFormat(json_schema=named) | (TextSchemaFormat() as named):
            if named.schema is None:
                return Output(name=named.name)
            try:
                return make_output(named.schema, name=named.name)
            except SchemaUnfit as error:
                raise FieldProblem(Code.BAD_REQUEST, param, str(error)) from error
    return None


def policy_of(metadata: Mapping[str, str] | None, setting: QuestionPolicy) -> QuestionPolicy:
    """Returns what happens to questions: what the request says, or else the server's setting."""
    word = (metadata or {}).get("questions")
    if word is None:
        return setting
    if word not in list(QuestionPolicy):
        words = ", ".join(QuestionPolicy)
        raise FieldProblem(
            Code.BAD_REQUEST, "metadata.questions", f"say one of {words}", value=word
        )
    policy = QuestionPolicy(word)
    if policy is QuestionPolicy.ALLOW and setting is not QuestionPolicy.ALLOW:
        raise FieldProblem(
            Code.FORBIDDEN,
            "metadata.questions",
            f"only the operator can let every call run, by openai_questions = {str(policy)!r}",
        )
    return policy
