"""What the simulation has found, each as the smallest world that shows it.

The plan of the failing seed is kept, not the seed: plans are drawn differently when the simulation
grows. Each is lived with several seeds, which change who goes first and what the model says.
"""

from __future__ import annotations

import itertools

import pytest

from bargein.contracts.message import Mode
from bargein.testing.simulate import simulate
from bargein.testing.simulation.plan import (
    Action,
    DetachCall,
    LifeEnd,
    LifePlan,
    Moment,
    Plan,
    SendAgain,
    SendMessage,
    Step,
    StopCall,
    StopChild,
    StopSession,
    StopTurn,
    StoreFault,
    StoreFaultKind,
    Temper,
    WatchEvents,
    WithdrawMessage,
)

SEEDS = range(25)
TALKS = Temper(pace_s=0.4)
CALLS = Temper(calls=0.9, tools=("late",))

User = tuple[Step, ...]


def at(after_s: float, action: Action, *, session: int = 0, alone: bool = True) -> Step:
    return Step(after_s, session, action, alone=alone)


def hold(*users: User, temper: Temper = TALKS, lives: tuple[LifePlan, ...] = ()) -> None:
    sessions = 1 + max(step.session for user in users for step in user)
    for seed in SEEDS:
        outcome = simulate(Plan(seed, sessions, users, lives, temper))
        assert outcome.broken is None, outcome.story()


def faulty(*faults: tuple[int, StoreFaultKind, float]) -> tuple[LifePlan, ...]:
    return (LifePlan(faults=tuple(StoreFault(*fault) for fault in faults)),)


def test_a_refused_message_takes_nobodys_answer_away() -> None:
    """Its id went to the next message, whose sender was then forgotten in its place."""
    sent = SendMessage(Mode.INTERRUPT, client_id="c", waits_for_result=True)
    hold(
        (at(0.0, SendMessage(Mode.STEER), alone=False), at(0.0, sent)),
        (at(0.0, SendMessage(Mode.REJECT)),),
    )


@pytest.mark.parametrize("operation", range(6, 13))
def test_a_session_comes_back_though_a_stop_waits_beside_its_end(operation: int) -> None:
    """Two waited for the old turn's end, and the second took the first one's event."""
    hold(
        (
            at(1.0, SendMessage(Mode.QUEUE), alone=False),
            at(0.0, StopTurn(), alone=False),
            at(0.35, SendMessage(Mode.QUEUE)),
        ),
        (at(0.0, SendMessage(Mode.QUEUE)),),
        temper=CALLS,
        lives=faulty((operation, StoreFaultKind.FAILS_BEFORE, 0.0)),
    )


@pytest.mark.parametrize(("operation", "temper"), [(6, TALKS), (7, TALKS), (7, CALLS), (8, CALLS)])
def test_a_stop_that_was_not_stored_is_not_contradicted(operation: int, temper: Temper) -> None:
    """It was told as stopped, and read as crashed once the store answered again."""
    hold(
        (at(0.0, SendMessage(Mode.QUEUE)), at(0.3, StopTurn())),
        (at(0.1, SendMessage(Mode.QUEUE)),),
        temper=temper,
        lives=faulty((operation, StoreFaultKind.FAILS_BEFORE, 0.0)),
    )


def test_a_withdrawal_is_told_when_it_is_durable() -> None:
    """Whoever waited for the answer was told before the store had it."""
    hold(
        (at(0.4, WithdrawMessage(0.0)),),
        (
            at(0.0, SendMessage(Mode.QUEUE)),
            at(0.0, SendMessage(Mode.QUEUE, waits_for_result=True)),
        ),
        temper=Temper(stalls=1.0, store_pace_s=0.3),
    )


@pytest.mark.parametrize("operation", range(5, 12))
def test_who_waits_is_told_though_the_store_lied_about_a_failure(operation: int) -> None:
    """What was durable in spite of the error had been taken without the memory knowing of it."""
    hold(
        (
            at(0.0, SendMessage(Mode.STEER, waits_for_result=True)),
            at(0.0, SendMessage(Mode.STEER, waits_for_result=True)),
            at(0.0, SendMessage(Mode.QUEUE, waits_for_result=True)),
        ),
        temper=Temper(),
        lives=faulty((operation, StoreFaultKind.FAILS_AFTER, 0.0)),
    )


def test_the_same_message_again_while_its_taking_is_on_the_way_to_the_store() -> None:
    """For that moment it neither waited nor was taken, and was told to be gone."""
    steer = SendMessage(Mode.STEER, client_id="c", waits_for_result=True)
    hold(
        (at(0.0, SendMessage(Mode.STEER)),),
        (at(0.1, steer, alone=False), at(0.0, SendAgain(0.0), alone=False), at(0.02, SendAgain(0))),
        temper=Temper(store_pace_s=0.1),
    )


def test_the_state_of_an_agent_is_that_of_the_last_turn_that_ended() -> None:
    """A turn that a crash cut short had left its own with any other event that it wrote."""
    steps = (at(0.0, SendMessage(Mode.STEER)), at(1.0, SendMessage(Mode.STEER)))
    for at_step in range(20, 60, 4):
        lives = (LifePlan(LifeEnd.CRASHED, at_step=at_step),)
        hold(steps, steps, temper=Temper(odd_agents=1.0), lives=lives)


@pytest.mark.parametrize("event", ["CallDetached", "CallEnded"])
def test_a_session_whose_store_failed_comes_back_when_its_background_is_still(event: str) -> None:
    """A call had just been moved there; the next turn began while it was still being stopped."""
    steps = (
        at(0.0, SendMessage(Mode.STEER)),
        at(0.0, SendMessage(Mode.QUEUE)),
        Step(5.0, 0, DetachCall(0.0), moment=Moment.RUNS),
    )
    fails = LifePlan(faults=(StoreFault(0, StoreFaultKind.FAILS_BEFORE, event=event),))
    hold(steps, temper=Temper(calls=1.0, tools=("late",)), lives=(fails,))


def test_a_life_can_be_overtaken_while_the_loop_calls_back() -> None:
    """On asyncio the world could not go on from there, which looked like a message nobody answers:
    that fault was the simulation's own."""
    steps = (
        at(0.0, SendMessage(Mode.QUEUE)),
        Step(5.0, 0, StopChild(0.024), moment=Moment.BELOW),
    )
    temper = Temper(calls=0.8, tools=("delegates",), pace_s=0.05, hooks=True, idle_s=1.0)
    for seed, at_step in itertools.product((1, 2, 4), range(14, 24)):
        lives = (LifePlan(LifeEnd.OVERTAKEN, at_step=at_step),)
        outcome = simulate(Plan(seed, 1, (steps,), lives, temper), backend="asyncio")
        assert outcome.broken is None, outcome.story()


def test_a_stop_of_a_sub_agent_need_not_tell_of_what_was_given_up_before() -> None:
    """A sub-agent of it had run out of its own time and did not end, and its own log said so. The
    check of receipts asked for it once more."""
    send = SendMessage(Mode.STEER)
    users = (
        (at(0.374, send), Step(5.0, 1, StopChild(0.644), moment=Moment.BELOW)),
        (at(0.0, send, session=1),),
    )
    temper = Temper(calls=0.8, tools=("delegates",), pace_s=0.05, odd_agents=0.3)
    outcome = simulate(Plan(811700194, 2, users, (), temper))
    assert outcome.broken is None, outcome.story()


def test_a_sub_agent_may_have_settled_before_the_word_of_its_parents_stop_comes() -> None:
    """The cancel goes through the tree at once, and the command that tells of it through the loop:
    the check of logs asked for it in this order, too."""
    send = SendMessage(Mode.QUEUE)
    rollback = Step(5.0, 0, SendMessage(Mode.ROLLBACK), moment=Moment.BELOW, alone=False)
    users = ((at(0.0, SendMessage(Mode.REJECT)),), (at(0.0, send), rollback))
    temper = Temper(calls=0.3, tools=("slow", "delegates"), pace_s=0.0)
    outcome = simulate(Plan(811703979, 1, users, (), temper))
    assert outcome.broken is None, outcome.story()


def test_a_call_that_a_receipt_told_of_as_given_up_need_not_be_in_the_next_one() -> None:
    """Its end was on its way to the store, and the check of receipts still took it for open."""
    steps = (
        at(0.0, SendMessage(Mode.QUEUE)),
        Step(0.5, 0, StopCall(0.645), moment=Moment.RUNS),
        at(0.0, StopTurn()),
    )
    temper = Temper(calls=1.0, tools=("shielded",), pace_s=0.0)
    outcome = simulate(Plan(290500545, 1, (steps,), (), temper), backend="asyncio")
    assert outcome.broken is None, outcome.story()


def test_a_sub_agent_that_is_brought_back_leaves_its_root_to_another_owner() -> None:
    """Its store had failed once, and another life had claimed its root since: to bring it back the
    root was claimed again though nobody had asked, or it was written under the other's epoch."""
    steps = (at(0.0, SendMessage(Mode.STEER)), Step(5.0, 0, StopChild(0.5), moment=Moment.BELOW))
    fails = StoreFault(2, StoreFaultKind.FAILS_BEFORE, 0.001, event="MessageAccepted")
    hold(
        steps,
        temper=Temper(calls=0.8, tools=("delegates",), pace_s=0.05, store_pace_s=0.3),
        lives=(LifePlan(LifeEnd.OVERTAKEN, at_step=63, faults=(fails,)),),
    )


def test_the_same_message_again_while_its_withdrawal_is_on_the_way_to_the_store() -> None:
    """For that moment it neither waited nor was it withdrawn, and was told to be gone, which it
    would not have been had the store failed."""
    queued = SendMessage(Mode.QUEUE, client_id="c", waits_for_result=True)
    hold(
        (at(0.0, SendMessage(Mode.STEER)),),
        (at(0.4, queued), at(0.1, SendAgain(0.0), alone=False), at(0.05, SendAgain(0.0))),
        (at(0.9, WithdrawMessage(0.0)),),
        temper=Temper(stalls=1.0, store_pace_s=0.3),
    )


def test_who_only_watches_takes_no_session_back() -> None:
    """The watcher went on with the session that another owner had claimed, by claiming it."""
    stolen = StoreFault(0, StoreFaultKind.STOLEN, event="TurnSettled")
    hold(
        (at(0.0, SendMessage(Mode.STEER)), at(0.0, WatchEvents(9.0))),
        lives=(LifePlan(faults=(stolen,)),),
    )


def test_a_life_may_begin_something_until_it_is_told_that_another_has_taken_over() -> None:
    """Of commits that are written together one was refused while another was still being written:
    the law was held to the life from there on, and not from the answer."""
    send = SendMessage(Mode.QUEUE)
    temper = Temper(calls=0.8, tools=("delegates",), pace_s=0.0)
    for at_step in range(165, 175):
        lives = (LifePlan(LifeEnd.OVERTAKEN, at_step=at_step),)
        users = ((at(0.0, send),), (at(0.388, send),))
        outcome = simulate(Plan(160010545, 1, users, lives, temper))
        assert outcome.broken is None, outcome.story()


def test_a_turn_that_was_stopped_before_it_began_does_not_count_as_crashed() -> None:
    """Its start was durable, though the store said otherwise. The receipt of its stop was made
    outside of the turn, so that the recovery did not know of it."""
    stopped = Step(5.0, 0, StopTurn(), moment=Moment.SETTLES)
    hold(
        (at(0.0, SendMessage(Mode.STEER)), at(0.3, SendMessage(Mode.INTERRUPT))),
        (stopped,),
        temper=Temper(stalls=1.0),
        lives=(LifePlan(faults=(StoreFault(1, StoreFaultKind.FAILS_AFTER, event="TurnStarted"),)),),
    )


def test_a_receipt_that_is_not_stored_tells_nothing_of_a_later_owners_turn() -> None:
    """That turn had the same id, because the start of this one was never stored. The check of
    receipts took them for one."""
    slow = StoreFault(0, StoreFaultKind.SLOW_BEFORE, 1.0, event="TurnSettled")
    hold(
        (
            at(0.0, SendMessage(Mode.STEER)),
            at(0.1, SendMessage(Mode.INTERRUPT)),
            at(0.5, StopSession(), alone=False),
        ),
        temper=Temper(stalls=1.0),
        lives=(LifePlan(LifeEnd.OVERTAKEN, at_s=0.7, faults=(slow,)),),
    )
