"""The scenarios, as data. How each kind is played is in `plays`, `plays_many`, `plays_crash`,
`costs`."""

from __future__ import annotations

from dataclasses import dataclass, field

from bench.interruptbench.script import Step


@dataclass(frozen=True, slots=True)
class Scenario:
    """`needs`: the features without which a system cannot be asked; `runs`: samples by default."""

    id: str
    title: str
    play: str
    runs: int = 20
    needs: tuple[str, ...] = ()
    step: Step = field(default_factory=Step)
    wait_for_part: bool = False
    delay_s: tuple[float, float] = (0.05, 0.15)
    command: str = ""
    blocks_s: tuple[float, ...] = ()
    batch: int = 1

    @property
    def number(self) -> str:
        return self.id.rstrip("abcdefgh")


SCENARIOS = {
    each.id: each
    for each in (
        Scenario(
            "1a", "stop in a stream, a part every 50 ms", "stop_model",
            step=Step(parts=60, pace_s=0.05), wait_for_part=True, delay_s=(0.05, 0.2),
        ),
        Scenario(
            "1b", "stop in a stream, a part every 1 s", "stop_model",
            step=Step(parts=4, pace_s=1.0), wait_for_part=True, delay_s=(0.1, 0.5),
        ),
        Scenario(
            "1c", "stop while silent, before the headers", "stop_model",
            step=Step(before_headers_s=3.0),
        ),
        Scenario(
            "1d", "stop while silent, after the headers", "stop_model",
            step=Step(after_headers_s=3.0),
        ),
        Scenario("2a", "stop a command", "stop_command", needs=("terminal",), command="plain"),
        Scenario(
            "2b", "stop a command with a double-forked setsid child", "stop_command",
            needs=("terminal",), command="escapes",
        ),
        Scenario(
            "2c", "stop a command that ignores SIGINT and SIGTERM", "stop_command",
            needs=("terminal",), command="stubborn",
        ),
        Scenario(
            "3a", "stop a blocking sync tool that never looks", "stop_block", batch=3, runs=21,
            needs=("block",), blocks_s=(4.0,),
        ),
        Scenario(
            "3b", "stop two such tools side by side", "stop_block", batch=3, runs=21,
            needs=("block",), blocks_s=(4.0, 4.0),
        ),
        Scenario(
            "4", "stop a parent whose sub-agent streams", "stop_child",
            needs=("delegate",), step=Step(parts=60, pace_s=0.05), delay_s=(0.05, 0.2),
        ),
        Scenario(
            "5", "redirect within 80 ms of the turn's end", "redirect", runs=200, batch=10,
            needs=("redirect",), step=Step(parts=4, pace_s=0.03), delay_s=(-0.08, 0.08),
        ),
        Scenario(
            "6a", "50 sessions stream, one after another is stopped", "stop_among_many", batch=20,
            step=Step(parts=80, pace_s=0.1),
        ),
        Scenario(
            "6b", "late stops of ended sessions, worker threads reused", "stop_late", batch=25,
            runs=25, needs=("terminal",),
        ),
        Scenario(
            "7", "two messages at once for one session", "two_at_once", runs=200, batch=10,
            needs=("sessions",), step=Step(parts=4, pace_s=0.03),
        ),
        Scenario(
            "8", "next message after a stop between two tool calls", "stop_between_calls",
            needs=("block",), blocks_s=(0.05, 0.6), delay_s=(0.15, 0.25),
        ),
        Scenario("9", "kill -9 in the middle of a turn, then restart", "crash", needs=("restart",)),
        Scenario("10", "what it costs", "cost"),
    )
}  # fmt: skip
