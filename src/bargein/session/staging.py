"""The stage of a session: what its turns change there is looked at, accepted or discarded.

A stage is part of a session's place, so a restart finds it again. What is asked of it happens one
after the other, and a turn refreshes it before its agent begins: a turn never meets an acceptance
or a discarding half-way. These need a session at rest: what still writes would be accepted half.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from bargein.contracts.checkpoint import CheckpointError, Span
from bargein.contracts.event import Recorded, StageAccepted, StageDiscarded
from bargein.contracts.live import Notice
from bargein.contracts.place import SessionPlace
from bargein.contracts.stage import SessionStage, StagedFiles
from bargein.errors import UserError
from bargein.session.sending import Busy, TooLate
from bargein.session.turn import AgentFunction, Turn

if TYPE_CHECKING:
    from bargein.session.actor import Actor

NOT_STAGED = "this session is not staged: it works in its folder itself; `/stage on` stages it"


def refreshing(actor: "Actor", stage: SessionStage, agent: AgentFunction) -> AgentFunction:
    """An agent that first sees what others changed in the workspace meanwhile."""

    async def run(turn: Turn) -> None:
        try:
            await stage.refresh()
        except CheckpointError as error:
            actor.emit(Notice(turn.id, f"the stage is as it was before: {error}"))
        await agent(turn)

    return run


async def accept(
    actor: "Actor", paths: Sequence[str], overrule: Sequence[str], *, by: str
) -> StagedFiles:
    """Accept what is staged. In the log when this returns."""
    done = await _at_rest(actor).accept(paths, overrule)
    if done.span is not None:
        await actor.write(StageAccepted(done, by)).wait()
    return done


async def take_back(actor: "Actor", log: Sequence[Recorded], *, by: str) -> StagedFiles:
    """Take the last acceptance back that was not taken back itself."""
    last = last_acceptance(log)
    if last is None:
        raise TooLate("there is no acceptance that could be taken back")
    done = await _at_rest(actor).take_back(last)
    if done.span is not None:
        await actor.write(StageAccepted(done, by, taken_back=True)).wait()
    return done


async def discard(actor: "Actor", paths: Sequence[str], *, by: str) -> StagedFiles:
    """Discard what is staged; with no paths everything, also what could not be accepted."""
    stage = _at_rest(actor)
    if paths:
        done = await stage.discard(paths)
    else:
        done = StagedFiles()
        with suppress(CheckpointError):
            done = await stage.look()
        await _at_rest(actor).begin_anew()
    done = msgspec.structs.replace(done, diff="", span=None)
    await actor.write(StageDiscarded(done, by)).wait()
    return done


async def refuse_to_leave_stage(actor: "Actor", place: SessionPlace) -> None:
    """Raise if something is staged that the session would leave behind in another place."""
    stage, before = actor.parts.stage, actor.state.place
    moves = before is not None and before.workspace != place.workspace
    if stage is None or (place.staged and not moves):
        return
    _refuse_if_busy(actor)
    changed = (await stage.look()).changed
    if changed:
        named = ", ".join(each.path for each in changed[:3])
        raise UserError(
            f"{len(changed)} changes are staged ({named}{', ...' if len(changed) > 3 else ''}); "
            "accept or discard them first"
        )


def last_acceptance(log: Sequence[Recorded]) -> Span | None:
    accepted: list[Span] = []
    for recorded in log:
        event = recorded.event
        if isinstance(event, StageAccepted) and event.files.span is not None:
            if event.taken_back:
                del accepted[-1:]
            else:
                accepted.append(event.files.span)
    return accepted[-1] if accepted else None


def stage_of(actor: "Actor") -> SessionStage:
    stage = actor.parts.stage
    if stage is None:
        raise UserError(NOT_STAGED)
    return stage


def _at_rest(actor: "Actor") -> SessionStage:
    stage = stage_of(actor)
    _refuse_if_busy(actor)
    return stage


def _refuse_if_busy(actor: "Actor") -> None:
    if actor.turn is not None or actor.state.restoring:
        raise Busy("a turn is running, which may still change what is staged; stop it first")
    if actor.background:
        call = next(iter(actor.background.values()))
        raise Busy(
            f"{call.planned.title} runs in the background and may still change what is staged; "
            "stop it first"
        )
