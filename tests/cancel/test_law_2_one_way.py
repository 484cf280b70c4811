"""Law 2: what is cancelled stays so, observable for ever. There is no `clear`."""

import copy
import gc
import pickle
import threading

import pytest

from bargein.cancel import CancelSource, Cause, Reason, Token, as_current, is_interrupted
from bargein.testing.invariants import Laws, OneWay

STOP = Reason(Cause.USER_STOP)


def test_the_first_cause_wins_and_is_remembered() -> None:
    source = CancelSource("turn")
    child = CancelSource("call", source.token)
    assert child.cancel(Cause.BUDGET)
    assert source.cancel(STOP)
    assert not source.cancel(Cause.SHUTDOWN)
    assert not child.cancel(Cause.SHUTDOWN)
    assert source.token.reason == STOP
    assert child.token.reason == Reason(Cause.BUDGET)
    assert child.token.reason.root.cause is Cause.BUDGET


def test_cancelled_or_ended_is_decided_once() -> None:
    cancelled, ended = CancelSource("cancelled"), CancelSource("ended")
    assert cancelled.cancel(STOP)
    assert not cancelled.seal()
    assert ended.seal()
    assert not ended.seal()
    assert not ended.cancel(STOP)
    assert (cancelled.token.cancelled, cancelled.token.ended) == (True, False)
    assert (ended.token.cancelled, ended.token.ended) == (False, True)
    assert ended.token.reason is None


def test_the_block_of_a_source_seals_what_was_not_cancelled() -> None:
    with CancelSource("ended") as source:
        assert not source.token.ended
    assert source.token.ended
    with CancelSource("cancelled") as source:
        source.cancel(STOP)
    assert (source.token.cancelled, source.token.ended) == (True, False)
    with pytest.raises(LookupError), CancelSource("failed") as source:
        raise LookupError
    assert source.token.ended


def test_a_poller_sees_it_long_after_the_run_is_gone() -> None:
    """A run cleared its flag on the way out while a tool was still polling."""
    seen: list[bool] = []
    polls = threading.Event()

    def poll(token: Token) -> None:
        polls.wait(10)
        seen.append(token.cancelled)

    with CancelSource("session") as session:
        with CancelSource("turn", session.token) as turn:
            thread = threading.Thread(target=poll, args=(turn.token,))
            thread.start()
            turn.cancel(STOP)
        with CancelSource("next turn", session.token) as following:
            assert not following.token.cancelled
    del turn, following, session
    gc.collect()
    polls.set()
    thread.join()
    assert seen == [True]


def test_a_new_turn_has_a_new_token_that_no_earlier_stop_reaches() -> None:
    """A flag set after its last check survived into the next turn, which ended at once."""
    session = CancelSource("session")
    for _ in range(3):
        with CancelSource("turn", session.token) as turn, as_current(turn.token):
            assert not is_interrupted()
            assert turn.cancel(STOP)
            assert is_interrupted()


@pytest.mark.parametrize("name", ["cancelled", "ended", "reason", "name", "_cell", "anything"])
def test_a_token_is_read_only(name: str) -> None:
    source = CancelSource("turn")
    source.cancel(STOP)
    with pytest.raises(AttributeError, match=f"{name}: a token is read-only"):
        setattr(source.token, name, None)
    with pytest.raises(AttributeError, match=f"{name}: a token is read-only"):
        delattr(source.token, name)
    assert source.token.cancelled


def test_there_is_no_way_back_and_no_second_token_of_the_same_state() -> None:
    source = CancelSource("turn")
    public = {name for name in dir(source) if not name.startswith("_")}
    assert public == {"cancel", "limit", "link", "seal", "token"}
    for attempt in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises((TypeError, AttributeError, pickle.PicklingError)):
            attempt(source.token)
    with pytest.raises(TypeError, match=r"made by its CancelSource"):
        Token()


def test_the_checker_agrees_over_a_life() -> None:
    laws = Laws([OneWay()])
    root = CancelSource("root")
    children = [CancelSource(f"{n}", root.token) for n in range(6)]
    for number, child in enumerate(children):
        laws.observe_tree(root.token)
        assert child.seal() if number % 2 else child.cancel(STOP)
        laws.check()
    root.cancel(Cause.SHUTDOWN)
    laws.check()
