"""`@tool`: a function becomes something a model can call.

    @tool(effect=Effect.NONE, timeout_s=30)
    def count_words(text: str, token: Token) -> int:
        \"\"\"Count the words of a text.

        Args:
            text: What to count in.
        \"\"\"

The model reads the docstring, and its arguments must match the annotations. The kind of function
decides how it runs and how it stops:

- `async def`: runs in a task; a stop cancels it at its next await.
- `def`: runs in a thread; it stops when it checks its token (`token.check()`). With `stop="raise"`
  an exception is raised inside it, at a safe place in its own code.
- `def` with `isolation="process"`: runs in its own contained process, which a stop kills. Only this
  kind stops whatever it is doing. The function must be importable by its name.

A function that does not stop within `grace_s` is abandoned: the result says so, and its resources
stay taken.

A call with an effect that is not in files can be undone if another function does it:

    def cancel_order(item: str, result: str) -> str: ...

    @tool(undo=cancel_order)
    def order(item: str, count: int = 1) -> str: ...

It gets those arguments of the call that it has parameters for, and in `result` the text of the
call's result. Users are offered it when they undo the turn; it runs as a call of its own.
"""

import inspect
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, Literal, ParamSpec, TypeVar, final, overload

import msgspec

from bargein.calls.text import one_line
from bargein.cancel.clock import check_seconds
from bargein.contracts.grace import BLIND_S, TOOL_S
from bargein.contracts.model import ToolSchema
from bargein.contracts.permission import Reach
from bargein.contracts.tool import Effect
from bargein.tools.arguments import RESULT
from bargein.tools.signature import Signature, read_signature

P = ParamSpec("P")
R = TypeVar("R")

Isolation = Literal["thread", "process"]
Stop = Literal["token", "raise"]
Arguments = Mapping[str, Any]
Timeout = float | None | Callable[[Arguments], float | None]

_NAME = re.compile(r"^[A-Za-z_][A-Za-z0-9_-]{0,63}$")


class ToolOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a tool runs and is described. Frozen; checked when created."""

    effect: Effect = Effect.UNKNOWN
    isolation: Isolation = "thread"
    stop: Stop = "token"
    timeout_s: Timeout = None
    """May be a function of the arguments, for tools that let the model choose."""
    grace_s: float | None = None
    """How long the tool may take to stop. None: depends on whether the function can notice a stop
    (`Tool.grace_s`). A session caps it at its own limits."""
    resources: Callable[[Arguments], Iterable[str]] | None = None
    """Names resources from the arguments alone. Runs in the event loop: it must not do any I/O."""
    resources_found: Callable[[Arguments], Iterable[str]] | None = None
    """Names further resources that take I/O to find, such as the file a link leads to. Runs in a
    thread just before the call runs. These names must differ from all names of `resources`."""
    title: Callable[[Arguments], str] | None = None
    """A few words that describe a call to the user."""
    reach: Reach | Callable[[Arguments], Reach] | None = None
    """What a call can change by itself, where `effect` does not say. Decides which calls run in the
    permission modes `plan` and `auto-edit`."""
    asks: Callable[[Arguments], str] | None = None
    """Says why a call needs approval where no rule of the policy asks; empty if it needs none."""
    confined: Callable[[Arguments], bool] | None = None
    """Whether a call can run in `plan` mode, closed in so that it changes nothing."""
    granted_by: tuple[str, ...] | None = None
    """The parameters that a user's grant fixes; None fixes all given ones. Texts in which a danger
    was found are always fixed."""
    subject: str = ""
    """The parameter that titles show first, such as `command`."""
    example: dict[str, Any] | None = None
    """Arguments to show to a model that gave invalid ones."""
    when_stopped: str | Callable[[Arguments], str] = ""
    """What holds after a call was stopped in time, where `effect` does not say, such as
    `The file is as it was.`"""
    undo: Callable[..., object] | None = None
    """Undoes a call: a function, or another tool. Each of its parameters is one of this tool's, or
    `result`."""

    def __post_init__(self) -> None:
        if self.isolation not in ("thread", "process"):
            raise ValueError(f"isolation must be 'thread' or 'process', not {self.isolation!r}")
        if self.stop not in ("token", "raise"):
            raise ValueError(f"stop must be 'token' or 'raise', not {self.stop!r}")
        if not isinstance(self.effect, Effect):
            raise TypeError(f"effect must be an Effect, such as Effect.NONE, not {self.effect!r}")
        if self.grace_s is not None:
            check_seconds("grace_s", self.grace_s)
        if isinstance(self.timeout_s, int | float):
            check_seconds("timeout_s", self.timeout_s)


@final
class Tool(Generic[P, R]):
    """A function with everything needed to offer it to a model. Calling it calls the function."""

    def __init__(
        self, function: Callable[P, R], name: str | None = None, options: ToolOptions | None = None
    ) -> None:
        self.name = name or str(getattr(function, "__name__", type(function).__name__))
        if not _NAME.match(self.name):
            raise ValueError(
                f"{self.name!r} cannot be a tool's name: use letters, digits, _ and -, 64 at most; "
                "for example @tool(name='my_tool')"
            )
        if isinstance(function, Tool):
            raise TypeError(f"{self.name} is already a tool")
        self.function = function
        self.options = options or ToolOptions()
        self.signature: Signature = read_signature(function, self.name)
        self.is_async = _is_async(function)
        self.__name__ = self.name
        self.__doc__ = function.__doc__
        self.__module__ = function.__module__
        self.__wrapped__ = function
        self.undo = _undo_of(self)
        """The tool that undoes a call of this one."""
        _check_fits(self)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<Tool {self.name}>"

    @property
    def grace_s(self) -> float:
        """How long the tool may take to stop before it is abandoned."""
        options = self.options
        if options.grace_s is not None:
            return options.grace_s
        blind = self.runs_in_thread and options.stop == "token" and not self.signature.filled
        return BLIND_S if blind else TOOL_S

    @property
    def undo_takes_result(self) -> bool:
        """Whether `undo` needs what the call returned."""
        names = _parameters(self.undo) if self.undo is not None else ()
        return RESULT in names and RESULT not in _parameters(self)

    @property
    def runs_in_thread(self) -> bool:
        return not self.is_async and self.options.isolation == "thread"

    @property
    def schema(self) -> ToolSchema:
        parameters = msgspec.Raw(msgspec.json.encode(self.signature.schema))
        return ToolSchema(self.name, self.signature.description or self.name, parameters)

    def values(self, arguments: msgspec.Struct) -> dict[str, Any]:
        """Returns the arguments by name, as the function takes them."""
        return {name: getattr(arguments, name) for name in arguments.__struct_fields__}

    def given(self, arguments: msgspec.Struct) -> dict[str, Any]:
        """Returns the arguments that differ from their defaults."""
        return {
            field.name: getattr(arguments, field.name)
            for field in msgspec.structs.fields(arguments)
            if field.required or getattr(arguments, field.name) != field.default
        }

    def resources_of(self, arguments: Arguments) -> tuple[str, ...]:
        declared = self.options.resources
        return tuple(declared(arguments)) if declared is not None else ()

    def reach_of(self, arguments: Arguments) -> Reach | None:
        reach = self.options.reach
        return reach(arguments) if callable(reach) else reach

    def asks_for(self, arguments: Arguments) -> str:
        return self.options.asks(arguments) if self.options.asks is not None else ""

    def is_confined(self, arguments: Arguments) -> bool:
        return self.options.confined is not None and self.options.confined(arguments)

    def timeout_of(self, arguments: Arguments) -> float | None:
        timeout_s = self.options.timeout_s
        return timeout_s(arguments) if callable(timeout_s) else timeout_s

    def when_stopped(self, arguments: Arguments) -> str:
        words = self.options.when_stopped
        return words(arguments) if callable(words) else words

    def title_of(self, arguments: Arguments) -> str:
        if self.options.title is not None:
            return one_line(self.options.title(arguments))
        shown = arguments.get(self.options.subject) or next(iter(arguments.values()), "")
        return one_line(f"{self.name}: {shown}") if shown != "" else self.name


def _parameters(of: "Tool[..., Any]") -> tuple[str, ...]:
    return of.signature.arguments.__struct_fields__


def _undo_of(tool: "Tool[..., Any]") -> "Tool[..., Any] | None":
    function = tool.options.undo
    if function is None:
        return None
    if not callable(function):
        raise TypeError(f"tool {tool.name}: undo must be a function or a tool, not {function!r}")
    if tool.options.effect is Effect.NONE:
        raise ValueError(f"tool {tool.name}: it has no effect, so there is nothing to undo")
    undo: Tool[..., Any] = function if isinstance(function, Tool) else Tool(function)
    known = (*_parameters(tool), RESULT)
    for field in msgspec.structs.fields(undo.signature.arguments):
        if field.required and field.name not in known:
            raise TypeError(
                f"tool {tool.name} is undone by {undo.name}, whose parameter {field.name} it does "
                f"not have; {undo.name} can take {', '.join(known)}"
            )
    return undo


def _is_async(function: Callable[..., object]) -> bool:
    plain = inspect.unwrap(function)
    called = plain if inspect.isroutine(plain) else type(plain).__call__
    if inspect.isasyncgenfunction(called) or inspect.isgeneratorfunction(called):
        raise TypeError(
            f"{function!r} is a generator; a tool returns its result once. Use context.emit(text) "
            "of a ToolContext parameter to show intermediate output"
        )
    return inspect.iscoroutinefunction(called)


def _check_fits(tool: "Tool[..., Any]") -> None:
    options = tool.options
    if options.stop == "raise" and (tool.is_async or options.isolation == "process"):
        raise ValueError(f"tool {tool.name}: stop='raise' is for sync functions in a thread")
    if options.isolation == "thread":
        return
    if tool.is_async:
        raise ValueError(
            f"tool {tool.name}: isolation='process' is for sync functions; an async one runs in "
            "the event loop of this process"
        )
    if "context" in tool.signature.filled.values():
        raise TypeError(
            f"tool {tool.name}: a ToolContext cannot go into a process of its own; take a Token, "
            "print live output, and return the rest"
        )
    if tool.function.__module__ == "__main__" and not hasattr(sys.modules["__main__"], "__file__"):
        raise TypeError(
            f"tool {tool.name}: isolation='process' needs a function that can be imported, and "
            "this one was typed into an interpreter; put it into a file"
        )
    qualified = getattr(tool.function, "__qualname__", "<object>")
    if "<" in qualified:
        raise TypeError(
            f"tool {tool.name}: isolation='process' needs a function that can be imported by its "
            f"name, and {qualified} cannot; move it to the top level of its module"
        )


@overload
def tool(function: Callable[P, R], /) -> Tool[P, R]: ...


@overload
def tool(
    *,
    name: str | None = None,
    effect: Effect = Effect.UNKNOWN,
    isolation: Isolation = "thread",
    stop: Stop = "token",
    timeout_s: Timeout = None,
    grace_s: float | None = None,
    resources: Callable[[Arguments], Iterable[str]] | None = None,
    resources_found: Callable[[Arguments], Iterable[str]] | None = None,
    title: Callable[[Arguments], str] | None = None,
    reach: Reach | Callable[[Arguments], Reach] | None = None,
    asks: Callable[[Arguments], str] | None = None,
    confined: Callable[[Arguments], bool] | None = None,
    granted_by: tuple[str, ...] | None = None,
    subject: str = "",
    example: dict[str, Any] | None = None,
    when_stopped: str | Callable[[Arguments], str] = "",
    undo: Callable[..., object] | None = None,
) -> Callable[[Callable[P, R]], Tool[P, R]]: ...


def tool(
    function: Callable[P, R] | None = None, /, *, name: str | None = None, **options: Any
) -> Tool[P, R] | Callable[[Callable[P, R]], Tool[P, R]]:
    """Turns a function into a tool. See the module docstring; `ToolOptions` lists the options."""
    if function is not None:
        return Tool(function, name)

    def decorate(decorated: Callable[P, R]) -> Tool[P, R]:
        return Tool(decorated, name, ToolOptions(**options))

    return decorate
