"""Names that are written on the command line, checked before anything is begun."""

from argparse import ArgumentTypeError

from bargein.cli.streams import as_written

SESSION_CHARACTERS_MAX = 200


def session_name(text: str) -> str:
    text = as_written(text)
    if not text.isprintable() or not 1 <= len(text.strip()) <= SESSION_CHARACTERS_MAX:
        shown = text if len(text) <= SESSION_CHARACTERS_MAX else f"{text[:20]}..."
        raise ArgumentTypeError(
            f"{shown!r} is no name for a session: give 1 to {SESSION_CHARACTERS_MAX} characters "
            "that can be seen"
        )
    return text


def model_name(text: str) -> str:
    if not text.strip():
        raise ArgumentTypeError("give the name of a model, such as openai:NAME or local")
    return text


def host_name(text: str) -> str:
    if not text.strip():
        raise ArgumentTypeError("give an address or a name, such as 127.0.0.1")
    return text
