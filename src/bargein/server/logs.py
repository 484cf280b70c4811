"""The log of the server: one JSON object a line, with ids to follow and nothing to keep secret.

In a terminal it is for the person who sits there, in words and without the requests: a page alone
makes so many that they would carry the address away, and that has the token in it.
"""

import json
import logging
import re
import time
from typing import TextIO

FIELD_CHARACTERS_MAX = 200
FIELDS = ("principal", "session", "turn", "status", "elapsed_ms")

_SECRETS = re.compile(
    r"bgn_[0-9a-f]+_[\w-]+|(?i:bearer\s+)[\w.~+/=-]+|(?i:(?:token|key|secret)=)[^\s&\"']+"
)


def without_secrets(text: str) -> str:
    # Each of the three has one of these in it, and they are found much faster.
    if "=" in text or "bgn_" in text or "bearer" in text.lower():
        return _SECRETS.sub("[secret]", text)
    return text


class JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "at": f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(record.created))}"
            f".{int(record.msecs):03}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": without_secrets(record.getMessage()),
        }
        for name in FIELDS:
            value = getattr(record, name, "")
            if isinstance(value, str):
                # Of a request that was refused it is whatever somebody sent.
                value = without_secrets(value)[:FIELD_CHARACTERS_MAX]
            if value != "":
                line[name] = value
        if record.exc_info:
            line["error"] = without_secrets(self.formatException(record.exc_info))
        return json.dumps(line)


class Words(logging.Formatter):
    """What came from elsewhere can do nothing to the terminal."""

    def format(self, record: logging.LogRecord) -> str:
        words = [time.strftime("%H:%M:%S", time.localtime(record.created))]
        if record.levelno >= logging.WARNING:
            words.append(f"{record.levelname.lower()}:")
        words.append(record.getMessage())
        if record.exc_info:
            words.append(f"\n{self.formatException(record.exc_info)}")
        said = without_secrets(" ".join(words))
        return "".join(each if each.isprintable() or each == "\n" else " " for each in said)


def is_no_request(record: logging.LogRecord) -> bool:
    return not hasattr(record, "status")


def log_to(stream: TextIO, level: int = logging.INFO) -> None:
    """Everything that the server and the engine log, and uvicorn's warnings."""
    handler = logging.StreamHandler(stream)
    if stream.isatty():
        handler.setFormatter(Words())
        handler.addFilter(is_no_request)
    else:
        handler.setFormatter(JsonLines())
    root = logging.getLogger("bargein")
    root.handlers, root.propagate = [handler], False
    root.setLevel(level)
    for name in ("uvicorn", "uvicorn.error"):
        theirs = logging.getLogger(name)
        theirs.handlers, theirs.propagate = [handler], False
        theirs.setLevel(max(level, logging.WARNING))
