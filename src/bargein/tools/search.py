"""The `search_files` tool finds text or file names, in a process that can be killed.

A pattern from a model may run forever inside one call of the regular expression engine, which holds
the GIL: nothing in our own process could stop it. A child process can always be stopped, by the
user or by the time limit, and the results so far are kept.
"""

from typing import Annotated, Any

import msgspec

from bargein.calls.words import text_result
from bargein.contracts.tool import CallResult, CallStatus, Effect
from bargein.process import CaptureLimits
from bargein.tools.context import ToolContext
from bargein.tools.declaration import Tool, tool
from bargein.tools.output import as_read
from bargein.tools.tool_environment import ToolEnvironment, child_argv, wait_and_sweep

RESULTS_MAX = 200
_OUTPUT = CaptureLimits(head_bytes=128 * 1024, tail_bytes=1024)


def search_tool(tool_environment: ToolEnvironment) -> Tool[..., Any]:
    @tool(
        effect=Effect.NONE,
        timeout_s=tool_environment.settings.search_timeout_s,
        subject="pattern",
        title=lambda arguments: f"search {arguments['pattern'] or arguments['glob']}",
        example={"pattern": "def main", "glob": "*.py"},
    )
    async def search_files(
        context: ToolContext,
        pattern: str = "",
        path: str = ".",
        glob: str = "",
        ignore_case: bool = False,
        results_max: Annotated[int, msgspec.Meta(ge=1, le=1000)] = RESULTS_MAX,
    ) -> CallResult:
        """Search files of the workspace line by line. Without a pattern, list their names.

        Version control, caches, links and binary files are skipped.

        Args:
            pattern: A Python regular expression.
            path: The folder or file to search, relative to the workspace.
            glob: Which files, such as *.py or src/**/*.{ts,tsx}.
            ignore_case: Whether to ignore upper and lower case.
            results_max: How many lines to find at most.
        """
        # Refuses what plainly leads out of the workspace before starting a process.
        tool_environment.workspace.named(path)
        request = {
            "root": tool_environment.workspace.root,
            "shown": tool_environment.workspace.shown,
            "hidden": sorted(tool_environment.workspace.hidden()),
            "path": path,
            "pattern": pattern,
            "glob": glob,
            "ignore_case": ignore_case,
            "results_max": results_max,
        }
        process = await tool_environment.start(
            child_argv("search_child"),
            context,
            environment={},
            with_input=True,
            output=_OUTPUT,
        )
        context.output_from(lambda: as_read(process.output.text()))
        exited, _ = await wait_and_sweep(process, context, feed=msgspec.json.encode(request))
        output = as_read(process.output.text()).rstrip("\n")
        status = CallStatus.FINISHED if exited.code == 0 else CallStatus.FAILED
        return text_result(status, output or f"The search ended without output ({exited}).")

    return search_files
