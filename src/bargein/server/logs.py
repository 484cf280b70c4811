"""The server's log: one JSON object a line, with ids to follow a request, and without secrets.

In a terminal the log is plain words for a person, and leaves the requests out: one open page alone
makes so many that the address with the token, printed at the start, would scroll away.
"""

import json
import logging
import re
import time
from typing import TextIO

from bargein.server.limits import Rate
from bargein.server.request_context import REQUEST_ID

FIELD_CHARACTERS_MAX = 200
EVENT_CHARACTERS_MAX = 2000
ERROR_CHARACTERS_MAX = 16_000
FIELDS = ("principal", "session", "turn", "status", "elapsed_ms", "model", "address", "count")

STRANGERS_LINES_PER_S = 1.0
STRANGERS_LINES_BURST = 20
REFUSED = (401, 403, 408, 413, 421, 429)

_SECRETS = re.compile(
    r"bgn_[0-9a-f]+_[\w-]+|(?i:bearer\s+)[\w.~+/=-]+|(?i:(?:token|key|secret)=)[^\s&\"']+"
)


def without_secrets(text: str) -> str:
    # Every match contains one of these, and looking for them is much faster.
    if "=" in text or "bgn_" in text or "bearer" in text.lower():
        return _SECRETS.sub("[secret]", text)
    return text


def _shortened(text: str) -> str:
    """Keeps the beginning and the end. An error may quote a message, and be as long."""
    if len(text) <= ERROR_CHARACTERS_MAX:
        return text
    half = ERROR_CHARACTERS_MAX // 2
    return f"{text[:half]} ... {text[-half:]}"


class JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "at": f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(record.created))}"
            f".{int(record.msecs):03}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": without_secrets(record.getMessage()[:EVENT_CHARACTERS_MAX]),
        }
        if request_id := REQUEST_ID.get():
            line["request"] = request_id
        for name in FIELDS:
            value = getattr(record, name, "")
            if isinstance(value, str):
                # A refused request may carry any text here.
                value = without_secrets(value)[:FIELD_CHARACTERS_MAX]
            if value != "":
                line[name] = value
        if record.exc_info:
            trace = self.formatException(record.exc_info)
            line["error"] = without_secrets(_shortened(trace))
        return json.dumps(line)


class Words(logging.Formatter):
    """Replaces control characters, so that text from outside cannot affect the terminal."""

    def format(self, record: logging.LogRecord) -> str:
        words = [time.strftime("%H:%M:%S", time.localtime(record.created))]
        if record.levelno >= logging.WARNING:
            words.append(f"{record.levelname.lower()}:")
        words.append(record.getMessage())
        if record.exc_info:
            words.append(f"\n{_shortened(self.formatException(record.exc_info))}")
        line = without_secrets(" ".join(words))
        return "".join(each if each.isprintable() or each == "\n" else " " for each in line)


class Bounded(logging.Filter):
    """Bounds the rate of lines that anybody can cause without a token. The next line that is
    written has the count of those left out."""

    def __init__(self) -> None:
        super().__init__()
        self._rate = Rate(STRANGERS_LINES_PER_S, STRANGERS_LINES_BURST)
        self._left_out = 0

    def filter(self, record: logging.LogRecord) -> bool:
        if not _is_strangers(record):
            return True
        if self._rate.take(""):
            self._left_out += 1
            return False
        if self._left_out:
            record.count, self._left_out = self._left_out, 0
        return True


def _is_strangers(record: logging.LogRecord) -> bool:
    if record.name.startswith("uvicorn"):
        # Mostly that something is not HTTP. Failures of the app are logged as errors.
        return record.levelno < logging.ERROR
    return getattr(record, "status", 0) in REFUSED and not getattr(record, "principal", "")


def is_no_request(record: logging.LogRecord) -> bool:
    return not hasattr(record, "status")


def log_to(stream: TextIO, level: int = logging.INFO) -> None:
    """Sends the log of the server and the engine, and uvicorn's warnings, to the stream."""
    handler = logging.StreamHandler(stream)
    if stream.isatty():
        handler.setFormatter(Words())
        handler.addFilter(is_no_request)
    else:
        handler.setFormatter(JsonLines())
    handler.addFilter(Bounded())
    root = logging.getLogger("bargein")
    root.handlers, root.propagate = [handler], False
    root.setLevel(level)
    for name in ("uvicorn", "uvicorn.error"):
        theirs = logging.getLogger(name)
        theirs.handlers, theirs.propagate = [handler], False
        theirs.setLevel(max(level, logging.WARNING))
