"""The child process of a tool with `isolation="process"`: runs one call of one function.

`isolation` starts it. It imports the function by its name. Arguments and result travel as JSON,
never as pickle. The first signal of a stop cancels the function's token.
"""

import json
import os
import runpy
import signal
import sys
from importlib import import_module
from typing import Any

import msgspec

from bargein.calls.words import content_of, error_text
from bargein.cancel import Cancelled, CancelSource, Cause, Reason, as_current
from bargein.tools import frames
from bargein.tools.arguments import read_arguments
from bargein.tools.declaration import Tool


def _load(module: str, main_file: str, qualified_name: str) -> Tool[..., Any]:
    if main_file:
        names = runpy.run_path(main_file, run_name="__bargein_main__")
        first, *rest = qualified_name.split(".")
        found = names[first]
    else:
        found, rest = import_module(module), qualified_name.split(".")
    for name in rest:
        found = getattr(found, name)
    return found if isinstance(found, Tool) else Tool(found)


def _run(given: dict[str, Any], source: CancelSource) -> dict[str, Any]:
    tool = _load(given["module"], given["main_file"], given["qualified_name"])
    arguments = read_arguments(tool.name, tool.signature, given["arguments"])
    filled = dict.fromkeys(tool.signature.filled, source.token)
    with as_current(source.token):
        value = tool.function(**tool.values(arguments), **filled)
    return {"content": msgspec.to_builtins(content_of(value))}


def main() -> None:
    given = json.loads(sys.stdin.buffer.read())
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    sys.path[:] = given["sys_path"]
    source = CancelSource(given["name"])
    # Instead of KeyboardInterrupt, so that the function stops as it would in a thread.
    reason = Reason(Cause.CLIENT_GONE, "the call was stopped")
    signal.signal(signal.SIGINT, lambda number, frame: source.cancel(reason))
    try:
        answer = _run(given, source)
    except Cancelled:
        sys.exit(130)
    except BaseException as error:  # boundary: a user's function; the error is sent back
        answer = {"error": error_text(error)}
    sys.stdout.flush()
    frames.request(given["path"], {**answer, "secret": given["secret"]})
