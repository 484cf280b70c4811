"""The context sizes of well-known models in tokens. An unlisted model is unknown, not unlimited."""

_BY_BEGINNING = (
    ("gpt-5", 272_000),
    ("gpt-4.1", 1_000_000),
    ("gpt-4o", 128_000),
    ("o1", 200_000),
    ("o3", 200_000),
    ("o4", 200_000),
    ("claude-", 200_000),
    ("deepseek-", 128_000),
)


def context_tokens_of(model: str) -> int | None:
    """Looks a model up by the beginning of its name; ignores a prefix such as `openai/`."""
    name = model.rpartition("/")[2].lower()
    return next((tokens for start, tokens in _BY_BEGINNING if name.startswith(start)), None)
