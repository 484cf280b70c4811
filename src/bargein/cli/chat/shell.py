"""`!command`: runs one of the user's own commands, contained like the agent's but with no hiding.

It gets the user's whole environment and sees what the user sees. Its output is shown to the user
alone, and it stops like anything else. Nothing of it reaches the model unless the user sends it
with `/tell`.
"""

import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from bargein.cancel import Cancelled, CancelSource, Cause, Reason
from bargein.cli.chat.any_engine import AnyEngine
from bargein.errors import UserError
from bargein.process import Process
from bargein.tools.output import live_output
from bargein.view import ShownCall

SHARED_CHARACTERS_MAX = 20_000


@dataclass(frozen=True, slots=True)
class EndedCommand:
    """A command that has ended. `ending` says how, in a few words."""

    command: str
    output: str
    ending: str

    def as_message(self) -> str:
        output = self.output
        if len(output) > SHARED_CHARACTERS_MAX:
            half = SHARED_CHARACTERS_MAX // 2
            output = f"{output[:half]}\n[...]\n{output[-half:]}"
        return f"I ran this myself:\n\n    $ {self.command}\n\n{output}\n[{self.ending}]"


class ShellCommand:
    """`shown` is what the screen shows while it runs."""

    def __init__(self, command: str, now: Callable[[], float]) -> None:
        self.command = command
        self.shown = ShownCall("!", "", "!", now(), title=" ".join(command.split()))
        self.stopping = False
        self._now = now
        self._source = CancelSource(f"! {command}")
        self._process: Process | None = None

    def stop(self) -> None:
        """Stops the command; the second call goes straight to the kill."""
        if self.stopping and self._process is not None:
            self._process.begin_stop(hurry=True)
        self.stopping = True
        self._source.cancel(Reason(Cause.USER_STOP, "user"))

    async def run(
        self, engine: AnyEngine, environment: Mapping[str, str], changed: Callable[[], None]
    ) -> EndedCommand:
        containment = await engine.users_containment()
        if containment is None:
            raise UserError("this agent has no workspace to run commands in")

        def show(text: str) -> None:
            self.shown.output.add(text)
            changed()

        nobody_pages = {"PAGER": "cat", "GIT_PAGER": "cat", "TERM": "dumb"}
        try:
            self._process = process = await containment.spawn(
                [_shell(environment), "-c", self.command],
                cwd=os.getcwd(),
                env={**environment, **nobody_pages},
                token=self._source.token,
                stdin="null",
                on_output=live_output(show, self._now),
            )
        except Cancelled:
            return EndedCommand(self.command, "", "stopped before it began")
        exited = await process.wait()
        report = await process.stop()
        self._source.seal()
        ending = f"{exited}, {exited.elapsed_s:.1f} s"
        if self.stopping:
            count = max(1, len(report.processes))
            plural = "es" if count > 1 else ""
            ending = f"stopped in {report.elapsed_ms:.0f} ms ({count} process{plural})"
        return EndedCommand(self.command, process.output.text().rstrip("\n"), ending)


def _shell(environment: Mapping[str, str]) -> str:
    named = environment.get("SHELL", "")
    return named if os.access(named, os.X_OK) else shutil.which("sh") or "/bin/sh"
