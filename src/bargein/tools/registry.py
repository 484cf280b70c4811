"""`ToolRegistry`: the tools of an engine, as a session sees them (`contracts.tool.Toolbox`).

`plan` has no effect and depends only on the arguments. `run` does the work; it may be called only
by `bargein.calls.pipeline`, which bounds and abandons it. Calls run side by side unless they use
the same resource. One registry serves all sessions of an engine, in one event loop.
"""

import difflib
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from bargein.calls.words import denied, error_text, refused
from bargein.cancel import Cancelled, Token, run_thread
from bargein.contracts.grace import MARGIN_S
from bargein.contracts.model import Text, ToolCall, ToolSchema
from bargein.contracts.permission import Reach
from bargein.contracts.tool import (
    CallContext,
    CallResult,
    CallStatus,
    Effect,
    ForeignTool,
    ForeignTools,
    PlannedCall,
    Question,
    Refused,
)
from bargein.errors import ModelMisbehaved
from bargein.tools.approval import (
    DEFAULT_POLICY,
    Decision,
    Policy,
    PolicyVerdict,
    grant_of,
    question,
)
from bargein.tools.arguments import arguments_of_undo, read_arguments, read_object
from bargein.tools.context import ToolContext
from bargein.tools.declaration import Tool
from bargein.tools.resources import ResourceBusy, ResourceHold, ResourceTable
from bargein.tools.running import Isolated, LeftBehind, run_function
from bargein.tools.tool_environment import ToolEnvironment

_NOTHING_TO_UNDO = (CallStatus.NOT_STARTED, CallStatus.DETACHED)
CALLS_DEEP_MAX = 8
LOOK_S_MAX = 10.0
_LOOK_GRACE_S = 0.1

_log = logging.getLogger("bargein.tools")

AnyTool = Tool[..., Any]


class _Prepared(msgspec.Struct, frozen=True):
    tool: AnyTool
    values: dict[str, Any]
    timeout_s: float | None


class _PreparedForeign(msgspec.Struct, frozen=True):
    tool: ForeignTool
    values: dict[str, Any]


class NothingFound(ModelMisbehaved):
    """A resource of the call cannot be found, or not in time."""


class ToolRegistry:
    """`isolated` runs the tools that want their own process. `tool_environment` starts commands,
    and contains the processes that a tool's own code starts; without it such processes are not
    stopped. Tools read `deps` from their `ToolContext`. `foreign` are tools that others
    run."""

    def __init__(
        self,
        tools: Iterable[AnyTool | Callable[..., object]] = (),
        *,
        policy: Policy = DEFAULT_POLICY,
        isolated: Isolated | None = None,
        tool_environment: ToolEnvironment | None = None,
        deps: object = None,
        foreign: ForeignTools | None = None,
    ) -> None:
        self._tools: dict[str, AnyTool] = {}
        self._foreign = foreign
        self._foreign_chosen: frozenset[str] | None = None
        self._policy = policy
        self._isolated = isolated
        self._tool_environment = tool_environment
        self._deps = deps
        self.resources = ResourceTable()
        for each in tools:
            self.add(each)

    def add(self, tool: AnyTool | Callable[..., object]) -> AnyTool:
        """Adds a tool, from the next plan on; turns a plain function into one."""
        added = tool if isinstance(tool, Tool) else Tool(tool)
        if added.name in self._tools:
            raise ValueError(f"there is already a tool named {added.name!r}; give it another name")
        self._check_runs(added)
        if added.undo is not None:
            self._check_runs(added.undo)
        self._tools[added.name] = added
        return added

    def _check_runs(self, tool: AnyTool) -> None:
        if tool.options.isolation == "process" and self._isolated is None:
            raise ValueError(
                f"tool {tool.name} needs its own process, but this registry cannot start "
                "any; pass isolated=..."
            )
        wanted = tool.signature.deps
        if wanted is not None and not isinstance(self._deps, wanted):
            raise TypeError(
                f"tool {tool.name} needs deps of type {wanted.__name__}, but gets "
                f"{type(self._deps).__name__}; give the agent deps=..."
            )

    @property
    def names(self) -> tuple[str, ...]:
        return (*self._tools, *self._foreign_tools())

    @property
    def has_foreign(self) -> bool:
        return self._foreign is not None

    def _foreign_tools(self) -> Mapping[str, ForeignTool]:
        if self._foreign is None:
            return {}
        known = {
            name: tool for name, tool in self._foreign.tools().items() if name not in self._tools
        }
        chosen = self._foreign_chosen
        if chosen is None:
            return known
        return {name: tool for name, tool in known.items() if name in chosen}

    def subset(self, names: Iterable[str]) -> "ToolRegistry":
        """Returns some of the tools, for a sub-agent. Both registries share held resources."""
        chosen = list(names)
        foreign = self._foreign_tools()
        unknown = [name for name in chosen if name not in self._tools and name not in foreign]
        if unknown:
            raise ModelMisbehaved(self._no_such_tool(unknown[0]))
        registry = ToolRegistry(
            policy=self._policy,
            isolated=self._isolated,
            tool_environment=self._tool_environment,
            deps=self._deps,
            foreign=self._foreign,
        )
        registry._tools = {name: self._tools[name] for name in chosen if name in self._tools}
        registry._foreign_chosen = frozenset(chosen)
        registry.resources = self.resources
        return registry

    def schemas(self) -> tuple[ToolSchema, ...]:
        own = tuple(tool.schema for tool in self._tools.values())
        return (*own, *(tool.schema for tool in self._foreign_tools().values()))

    async def prepare(self, session_id: str, token: Token) -> None:
        """Have the tools of others known before a turn begins. Bounded."""
        if self._foreign is not None:
            await self._foreign.prepare(session_id, token)

    def plan(self, call: ToolCall) -> PlannedCall | Refused:
        tool = self._tools.get(call.name)
        if tool is None:
            foreign = self._foreign_tools().get(call.name)
            if foreign is not None:
                return self._plan_foreign(foreign, call)
            return Refused(self._no_such_tool(call.name))
        return self._plan(tool, call)

    def plan_undo(
        self, call: ToolCall, result: CallResult, call_id: str
    ) -> PlannedCall | Refused | None:
        """`UndoingToolbox.plan_undo`. A call that may have happened half can be undone if that does
        not need its result."""
        tool = self._tools.get(call.name)
        if tool is None or tool.undo is None or result.status in _NOTHING_TO_UNDO:
            return None
        if tool.undo_takes_result and result.status is not CallStatus.FINISHED:
            return None
        try:
            given = arguments_of_undo(
                tool.name,
                tool.signature,
                tool.undo.signature,
                given=call.arguments,
                result="\n".join(part.text for part in result.content if isinstance(part, Text)),
            )
        except ModelMisbehaved:
            return None  # such a call has never run
        return self._plan(tool.undo, ToolCall(call_id, tool.undo.name, given))

    def _plan(self, tool: AnyTool, call: ToolCall) -> PlannedCall | Refused:
        try:
            arguments = read_arguments(
                tool.name, tool.signature, call.arguments, tool.options.example
            )
            values = tool.values(arguments)
            resources = tool.resources_of(values)
            title = tool.title_of(values)
            prepared = _Prepared(tool, values, tool.timeout_of(values))
        except ModelMisbehaved as error:
            return Refused(str(error))
        except Exception as error:  # boundary: a user's function that describes a call
            _log.warning("tool %s could not describe a call", tool.name, exc_info=error)
            return Refused(f"{tool.name} cannot be called: {type(error).__name__}: {error}")
        verdict = self._policy.decide(tool.name, values)
        if verdict.decision is Decision.DENY:
            return Refused(denied(tool.name, verdict.why))
        if verdict.decision is Decision.ALLOW and (why := tool.asks_for(values)):
            verdict = PolicyVerdict(Decision.ASK, why)
        approval: Question | None = None
        if verdict.decision is Decision.ASK:
            try:
                given = tool.given(arguments)
                grant = grant_of(tool.name, verdict, given, tool.options.granted_by)
                approval = question(title, verdict.why, given, grant)
            except ModelMisbehaved as error:
                return Refused(str(error))
        # The ladder of a thread ends first, so the pipeline must wait a little longer.
        grace_s = tool.grace_s + (MARGIN_S if tool.runs_in_thread else 0.0)
        return PlannedCall(
            call,
            tool.options.effect,
            title,
            resources,
            approval,
            prepared,
            grace_s,
            tool.reach_of(values),
            tool.is_confined(values),
        )

    def _plan_foreign(self, tool: ForeignTool, call: ToolCall) -> PlannedCall | Refused:
        """A grant of the user's is for the tool, with whatever arguments."""
        name = call.name
        try:
            values = read_object(name, call.arguments)
            verdict = self._policy.decide(name, values)
            if verdict.decision is Decision.DENY:
                return Refused(denied(name, verdict.why))
            title = tool.title_of(values)
            approval: Question | None = None
            if verdict.decision is Decision.ASK:
                grant = grant_of(name, verdict, values, ())
                approval = question(title, verdict.why, values, grant)
        except ModelMisbehaved as error:
            return Refused(str(error))
        return PlannedCall(
            call,
            Effect.UNKNOWN,
            title,
            approval=approval,
            prepared=_PreparedForeign(tool, values),
            grace_s=tool.grace_s,
            reaches=Reach.ANYTHING,
        )

    async def run(self, planned: PlannedCall, context: CallContext) -> CallResult:
        return await self._run(planned, context, above=None, depth=0)

    def _no_such_tool(self, name: str) -> str:
        close = difflib.get_close_matches(name, self.names, n=1)
        hint = f" Did you mean {close[0]}?" if close else ""
        names = ", ".join(self.names) or "none"
        return f"There is no tool named {name!r}.{hint} The tools are: {names}."

    async def _run(
        self, planned: PlannedCall, context: CallContext, *, above: ResourceHold | None, depth: int
    ) -> CallResult:
        token, record = context.token, context.record
        assert record is not None
        record.nothing_was_begun()
        if isinstance(planned.prepared, _PreparedForeign):
            return await planned.prepared.tool.run(planned.prepared.values, context)
        try:
            hold = self.resources.enter(planned.title, planned.resources, above)
            # On the end of the call, not of this coroutine, which abandoned work may never reach.
            record.when_over(hold.leave)
            await _until_at_the_front(hold, token)
            await self._find_resources(planned, hold, token)
            await _until_at_the_front(hold, token)
        except (ResourceBusy, NothingFound) as error:
            return refused(str(error))
        prepared = planned.prepared
        assert isinstance(prepared, _Prepared)
        tool = prepared.tool
        record.when_stopped = tool.when_stopped(prepared.values)
        record.limit(prepared.timeout_s)
        below = _Below(self, hold, depth + 1)
        inside = ToolContext(context, record, below, self._tool_environment, self._deps)
        left = LeftBehind(self._tool_environment, inside, record, tool.grace_s)
        record.leftovers = left
        record.when_over(left.close)
        with left.watched():
            return await run_function(
                tool, prepared.values, inside, record=record, hold=hold, isolated=self._isolated
            )

    async def _find_resources(self, planned: PlannedCall, hold: ResourceHold, token: Token) -> None:
        """Runs in a thread and within a bound: a dead network drive must not block the loop."""
        prepared = planned.prepared
        assert isinstance(prepared, _Prepared)
        find = prepared.tool.options.resources_found
        if find is None:
            return
        with token.child("look", timeout_s=LOOK_S_MAX) as look:
            outcome = await run_thread(
                lambda: tuple(find(prepared.values)), token=look.token, grace_s=_LOOK_GRACE_S
            )
        token.check()
        if outcome.status == "finished":
            self.resources.extend(hold, outcome.unwrap())
        elif outcome.error is not None:
            raise NothingFound(error_text(outcome.error)) from outcome.error
        else:
            raise NothingFound(
                f"Not started: the resources of {planned.title!r} could not be found within "
                f"{LOOK_S_MAX:g} s; the drive may not respond."
            )


async def _until_at_the_front(hold: ResourceHold, token: Token) -> None:
    if hold.waiting:
        with token.scope():
            await hold.wait()
    if token.cancelled:
        raise Cancelled(token)


class _Below:
    """The registry as a running call sees it: calls made through it are below that call."""

    def __init__(self, registry: ToolRegistry, hold: ResourceHold, depth: int) -> None:
        self._registry = registry
        self._hold = hold
        self._depth = depth

    def schemas(self) -> tuple[ToolSchema, ...]:
        return self._registry.schemas()

    def plan(self, call: ToolCall) -> PlannedCall | Refused:
        if self._depth > CALLS_DEEP_MAX:
            return Refused(
                f"{call.name} was not started: calls that make calls may be nested "
                f"{CALLS_DEEP_MAX} deep at most."
            )
        return self._registry.plan(call)

    async def run(self, planned: PlannedCall, context: CallContext) -> CallResult:
        return await self._registry._run(planned, context, above=self._hold, depth=self._depth)
