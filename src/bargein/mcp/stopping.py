"""Describes how the stop of a call went, and claims no more than is known.

MCP never confirms what a call did: at most a server confirms that it received the stop.
"""

from collections.abc import Sequence

from bargein.calls.text import one_line
from bargein.contracts.tool import ProcessEnd, StopDetail
from bargein.mcp.connection import StopAnswer
from bargein.mcp.pending import Late, PendingRequest
from bargein.process import StopReport

OTHERS_SHOWN = 5

NOT_SENT = "The request had not been sent to the server yet. Nothing happened."


def told_words(server: str, told: StopAnswer) -> str:
    """For the receipt."""
    if told.late is Late.ERROR:
        return f"MCP server {server} confirmed"
    if told.late is Late.RESULT:
        return f"MCP server {server} had finished it"
    if not told.told:
        return f"MCP server {server} could not be told, reads nothing, may still be running"
    if told.responds is False:
        return f"MCP server {server} told, does not respond, may still be running"
    return f"MCP server {server} told, may still be running"


def when_stopped(server: str, told: StopAnswer) -> str:
    """Tell the model what the stopped call may have done."""
    if told.late is Late.RESULT:
        return (
            f"The MCP server {server} answered just after the stop: the call ran to its end, and "
            "its result was dropped."
        )
    half = "It may have happened in part or in whole; look before you repeat it."
    if told.late is Late.ERROR:
        return f"The MCP server {server} confirmed that it stopped. {half}"
    if not told.told:
        return (
            f"The MCP server {server} reads nothing and could not be told to stop; the call "
            f"may still be running there. {half}"
        )
    if told.responds is False:
        return (
            f"The MCP server {server} was told to stop and does not respond; the call may still be "
            f"running there. {half}"
        )
    return f"The MCP server {server} was told to stop; the call may still be running there. {half}"


def restarted_words(server: str, others: Sequence[PendingRequest]) -> str:
    taken = ""
    if others:
        shown = ", ".join(one_line(each.label) for each in others[:OTHERS_SHOWN])
        more = f" and {len(others) - OTHERS_SHOWN} more" if len(others) > OTHERS_SHOWN else ""
        taken = f"; this ended {shown}{more} too"
    return f"MCP server {server} did not respond and was restarted{taken}"


def told_detail(server: str, told: StopAnswer, elapsed_ms: float) -> StopDetail:
    """Describe, for the receipt, a stop that was sent to the server."""
    confirmed = told.late is not Late.NOTHING
    return StopDetail(elapsed_ms, confirmed=confirmed, told=told_words(server, told))


def restart_detail(report: StopReport | None, words: str, elapsed_ms: float) -> StopDetail:
    """A stop that ended the server's processes, for the receipt."""
    if report is None:
        return StopDetail(elapsed_ms, confirmed=False, told=words)
    ended = tuple(
        ProcessEnd(each.pid, each.command, each.ended_by, each.elapsed_ms)
        for each in report.processes
    )
    left = tuple(ProcessEnd(each.pid, each.command, "", 0.0) for each in report.survivors)
    return StopDetail(elapsed_ms, report.means.value, report.confirmed, ended, left, told=words)
