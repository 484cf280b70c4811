"""The simulation finds faults: engines with a failure that real agents have had are each caught,
for what is wrong with them, within a stated number of seeds. The engine itself lives through the
same seeds."""

from __future__ import annotations

import inspect
import re

import msgspec
import pytest

from bargein.testing.simulate import simulate
from bargein.testing.simulation.world import World
from tests.simulation import variants as broken
from tests.simulation import variants_beside as beside


class Caught(msgspec.Struct, frozen=True):
    """`sign`: what must be said of it. Other faults that it causes may be found before."""

    variant: type[World]
    seeds_max: int
    sign: str


CAUGHT = (
    Caught(broken.OnePendingSlot, 300, r"law 3 .* (belong together|is nowhere|stranded)"),
    Caught(broken.StopErasesTheQueue, 100, r"law 3 .* did not hold what waits"),
    Caught(broken.SteerAfterTheLastStepIsStranded, 200, r"law (3|10) "),
    Caught(broken.MessageOfALateInterruptIsDropped, 300, r"law 3 .* (waited|waits)"),
    Caught(broken.BothMessagesStartATurn, 50, r"law 4 .* started while t# was in flight"),
    Caught(
        broken.StoppedIsShownWhileWorkGoesOn, 100, r"law 10 .* (still runs|being asked|was open)"
    ),
    Caught(broken.QueueGoesOnAfterAStop, 100, r"law 3 .* did not hold what waits"),
    Caught(broken.OnlyTheFirstOpenCallIsRepaired, 100, r"law 5 .* have no result"),
    Caught(broken.PartialTextIsThrownAway, 200, r"law 5 .* had said .* kept is"),
    Caught(broken.AnAlbumInterruptsItself, 300, r"law 3 .* album"),
    Caught(broken.ACrashedTurnIsRunAgain, 100, r"law 3 .* took .* alone; \[\]"),
    Caught(broken.ARolledBackTurnIsStillShown, 100, r"law 9 .* hidden=False, rolled back=True"),
    Caught(broken.StopWaitsForTheTool, 400, r"law 6 .* waited .* for the receipt"),
    Caught(broken.StopReleasesTheSession, 400, r"law 4 .* starts, .*Work"),
    Caught(broken.ARedeliveredMessageIsAnsweredTwice, 400, r"law 3 .* (told|accepted) .* (#|x)"),
    Caught(broken.AcknowledgedBeforeDurable, 50, r"law 3 .* acknowledged, not durable"),
    Caught(broken.AStaleOwnerWritesOn, 300, r"law (2|4) .* is in flight"),
    Caught(broken.AStoppedRequestIsTriedAgain, 100, r"law 8 .* asked after the stop"),
    Caught(broken.AStopSurvivesIntoTheNextTurn, 100, r"law 9 .* the model was never asked"),
    Caught(broken.AStopKillsEveryCommand, 200, r"law 1 .* who meant another$"),
    Caught(broken.ADetachedCallDiesWithItsTurn, 400, r"law 1 .* stopped with its turn"),
    Caught(broken.TheEndOfAStoppedCallBeginsATurn, 400, r"law 9 .* its end began t"),
    Caught(broken.AStopOfOneCallStopsItsSiblings, 300, r"law 1 .* who meant another call"),
    Caught(beside.AStopOfOneChildStopsItsSiblings, 400, r"law 1 .* who meant another child"),
    Caught(beside.ACompactionLetsGoOfWhatIsHeld, 400, r"law 3 .* held=(True|False)"),
    Caught(beside.ATitleIsMadeAgain, 300, r"law 3 .* is given another title"),
    Caught(beside.ARenameIsNotKept, 300, r"law 3 .* and the store says"),
)


@pytest.mark.parametrize("caught", CAUGHT, ids=lambda caught: caught.variant.__name__)
def test_a_broken_engine_is_caught(caught: Caught) -> None:
    kinds: dict[str, int] = {}
    for seed in range(caught.seeds_max):
        outcome = simulate(seed, make_world=caught.variant)
        if outcome.broken is not None:
            kinds.setdefault(outcome.kind, seed)
            if re.search(caught.sign, outcome.kind):
                assert simulate(seed).broken is None
                return
    pytest.fail(f"not caught for what it is within {caught.seeds_max} seeds; found: {kinds}")


def test_every_broken_engine_is_tried() -> None:
    there = {
        each
        for each in (*vars(broken).values(), *vars(beside).values())
        if inspect.isclass(each) and issubclass(each, World) and each is not World
    }
    assert {caught.variant for caught in CAUGHT} == there
