"""The child process of the `python` tool: runs code that can call the other tools.

`child.py` starts it; it uses only the standard library. It reads the code and the address of the
link from standard input and then closes that. It sends back the value of a last expression;
anything the code prints goes straight to standard output.
"""

import ast
import json
import linecache
import os
import sys
import traceback
from collections.abc import Callable
from types import CodeType, ModuleType
from typing import Any

from bargein.tools import frames

_NAME = "<code>"
_VALUE_CHARS_MAX = 30_000


class ToolFailed(Exception):
    """A tool call was not successful. `status` says how it came out."""

    def __init__(self, name: str, status: str, text: str) -> None:
        super().__init__(f"{name} ({status}): {text}")
        self.name = name
        self.status = status
        self.text = text


class _Asking:
    def __init__(self, path: str, secret: str) -> None:
        self._path = path
        self._secret = secret

    def ask(self, message: frames.Message) -> frames.Message:
        return frames.request(self._path, {**message, "secret": self._secret})

    def call(self, name: str, /, **arguments: Any) -> str:
        """Call a tool by name. Returns its text, or raises ToolFailed."""
        answer = self.ask({"call": name, "arguments": arguments})
        if answer["is_error"]:
            raise ToolFailed(name, answer["status"], answer["text"])
        return str(answer["text"])


def _tools_module(asking: _Asking, tools: list[dict[str, Any]]) -> ModuleType:
    module = ModuleType("bargein_tools", "The agent's tools, as functions.")
    module.__dict__.update(call=asking.call, ToolFailed=ToolFailed)
    for tool in tools:
        module.__dict__[tool["name"]] = _function(asking, **tool)
    return module


def _function(
    asking: _Asking, name: str, description: str, parameters: list[str]
) -> Callable[..., str]:
    def function(*args: Any, **kwargs: Any) -> str:
        if len(args) > len(parameters):
            raise TypeError(f"{name}() takes {', '.join(parameters) or 'nothing'}")
        return asking.call(name, **dict(zip(parameters, args, strict=False)), **kwargs)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"{name}({', '.join(parameters)})\n\n{description}"
    return function


def _compiled(code: str) -> tuple[CodeType, CodeType | None]:
    """Returns the code without a last expression, and that expression by itself, if any."""
    tree = ast.parse(code, _NAME)
    last: CodeType | None = None
    if tree.body and isinstance(tree.body[-1], ast.Expr):
        expression = ast.Expression(tree.body.pop().value)  # type: ignore[attr-defined]
        last = compile(expression, _NAME, "eval")
    return compile(tree, _NAME, "exec"), last


def _run(code: str) -> object:
    linecache.cache[_NAME] = (len(code), None, code.splitlines(keepends=True), _NAME)
    first, last = _compiled(code)
    main_module = ModuleType("__main__")
    sys.modules["__main__"] = main_module
    exec(first, main_module.__dict__)
    return eval(last, main_module.__dict__) if last is not None else None


def _show_error(error: BaseException) -> None:
    """Prints the traceback as Python would, without our own frames."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename != _NAME:
        trace = trace.tb_next
    traceback.print_exception(type(error), error, trace)


def main() -> None:
    given = json.loads(sys.stdin.buffer.read())
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    asking = _Asking(given["path"], given["secret"])
    sys.modules["bargein_tools"] = _tools_module(asking, given["tools"])
    sys.argv = [_NAME]
    sys.path.insert(0, os.getcwd())
    try:
        value = _run(given["code"])
        if value is not None:
            asking.ask({"value": repr(value)[:_VALUE_CHARS_MAX]})
    except SystemExit:
        raise
    except BaseException as error:  # boundary: the model's code; shown as Python shows it
        sys.stdout.flush()
        _show_error(error)
        sys.exit(1)
