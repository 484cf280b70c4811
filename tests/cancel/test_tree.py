"""The tree: what a cancel reaches, in which order, and how links change it."""

import threading

import pytest

from bargein.cancel import CancelSource, Cause, Link, Reason, Token, TokenEnded, bridge
from tests.cancel.harness import frequent_switches

STOP = Reason(Cause.USER_STOP, "the button")


def test_a_cancel_reaches_all_below_and_tells_them_why() -> None:
    turn = CancelSource("turn")
    call = CancelSource("call", turn.token)
    request = CancelSource("request", call.token)
    assert turn.cancel(STOP)
    assert turn.token.reason == STOP
    for token in (call.token, request.token):
        assert token.cancelled
        assert token.reason == Reason(Cause.PARENT, "turn", STOP)
        assert token.reason.root == STOP
        assert str(token.reason) == "parent: turn (user_stop: the button)"


def test_a_child_of_a_cancelled_token_is_born_cancelled() -> None:
    turn = CancelSource("turn")
    call = CancelSource("call", turn.token)
    turn.cancel(STOP)
    for parent in (turn, call):
        born = parent.token.child("late", timeout_s=60)
        assert born.token.cancelled
        assert born.token.reason == Reason(Cause.PARENT, "turn", STOP)
        assert not born.cancel(Cause.SHUTDOWN)
        assert not born.seal()


def test_a_child_of_an_ended_token_is_refused() -> None:
    turn = CancelSource("turn")
    turn.seal()
    with pytest.raises(TokenEnded, match="late cannot start under turn, which has already ended"):
        turn.token.child("late")
    assert not turn.token._below


def test_flags_first_then_delivery_ancestors_first() -> None:
    root = CancelSource("root")
    middles = [CancelSource(f"middle {n}", root.token) for n in range(3)]
    leaves = [CancelSource(f"leaf {n}", middles[n % 3].token) for n in range(9)]
    everything = [root, *middles, *leaves]
    delivered: list[Token] = []

    def deliver(token: Token) -> None:
        assert all(source.token.cancelled for source in everything)
        delivered.append(token)

    for source in reversed(everything):
        bridge(source.token, lambda token=source.token: deliver(token))  # type: ignore[misc]
    root.cancel(STOP)
    place = {token: number for number, token in enumerate(delivered)}
    assert len(place) == 13
    for source in leaves:
        middle = middles[int(source.token.name[-1]) % 3]
        assert place[root.token] < place[middle.token] < place[source.token]


def test_ancestors_first_also_where_a_token_has_a_near_and_a_far_parent() -> None:
    root = CancelSource("root")
    far = [CancelSource("far 0", root.token)]
    for number in range(1, 6):
        far.append(CancelSource(f"far {number}", far[-1].token))
    shared = CancelSource("shared", root.token)
    shared.link(far[-1].token)
    below = CancelSource("below", shared.token)
    delivered: list[str] = []
    for source in (below, shared, *far, root):
        bridge(source.token, lambda name=source.token.name: delivered.append(name))  # type: ignore[misc]
    root.cancel(STOP)
    assert delivered == ["root", *(f"far {n}" for n in range(6)), "shared", "below"]


def test_no_descendant_starts_anything_once_cancel_has_returned() -> None:
    """Threads make children and grandchildren as fast as they can while the root is cancelled."""
    with frequent_switches():
        for _ in range(60):
            root = CancelSource("root")
            made: list[CancelSource] = []
            go, over = threading.Event(), threading.Event()

            def make(
                root: CancelSource = root,
                made: list[CancelSource] = made,
                go: threading.Event = go,
                over: threading.Event = over,
            ) -> None:
                go.wait()
                while not over.is_set():
                    child = root.token.child("child")
                    made.append(child.token.child("grandchild"))

            threads = [threading.Thread(target=make) for _ in range(3)]
            for thread in threads:
                thread.start()
            go.set()
            while len(made) < 20:
                pass
            root.cancel(STOP)
            unflagged = [source for source in list(made) if not source.token.cancelled]
            over.set()
            for thread in threads:
                thread.join()
            assert unflagged == []
            assert all(source.token.cancelled for source in made)


def test_tokens_without_callbacks_leave_at_once_and_the_others_stay_within_reach() -> None:
    """Delivery has only begun when a second cancel comes: it must find what waits for delivery."""
    root = CancelSource("root")
    branches = [root.token.child(f"branch {number}") for number in range(3)]
    leaves = [branch.token.child("leaf") for branch in branches]
    bare = [leaf.token.child("bare") for leaf in leaves]
    fired: list[str] = []

    def first() -> None:
        assert not any(source.token._above for source in bare)
        assert root.cancel(STOP) is False
        fired.append("first")

    bridge(leaves[0].token, first)
    bridge(leaves[2].token, lambda: fired.append("second"))
    assert root.cancel(STOP)
    assert fired == ["second", "first"]
    assert not root.token.in_use
    assert not any(source.token._above for source in (*branches, *leaves, *bare))


def test_a_sealed_parent_leaves_its_children_within_reach() -> None:
    root = CancelSource("root")
    parent = CancelSource("parent", root.token)
    child = CancelSource("child", parent.token)
    assert parent.seal()
    assert not parent.cancel(STOP)
    assert not child.token.cancelled
    root.cancel(STOP)
    assert child.token.cancelled
    assert child.token.reason == Reason(Cause.PARENT, "root", STOP)
    assert parent.token.ended
    assert not parent.token.cancelled


def test_what_has_ended_leaves_the_tree_when_its_last_child_does() -> None:
    root = CancelSource("root")
    parent = CancelSource("parent", root.token)
    children = [CancelSource(f"child {n}", parent.token) for n in range(2)]
    parent.seal()
    children[0].seal()
    assert len(root.token._below) == 1
    children[1].cancel(STOP)
    assert not root.token._below
    assert not parent.token._above


@pytest.mark.parametrize("end", ["seal", "cancel"])
def test_a_long_ended_chain_leaves_without_recursion(end: str) -> None:
    chain = [CancelSource("root")]
    for number in range(5000):
        chain.append(CancelSource(f"{number}", chain[-1].token))
    for source in chain[1:-1]:
        source.seal()
    assert chain[-1].seal() if end == "seal" else chain[-1].cancel(STOP)
    assert not chain[0].token._below


def test_a_chain_of_a_hundred_thousand_is_cancelled_and_told_of() -> None:
    chain = [CancelSource("root")]
    for number in range(100_000):
        chain.append(CancelSource(f"{number}", chain[-1].token))
    assert chain[0].cancel(STOP)
    last = chain[-1].token
    assert repr(last) == "<Token 99999: cancelled, parent: root (user_stop: the button)>"
    assert last.reason is not None
    assert last.reason.root is chain[0].token.reason
    late = CancelSource("late", last)
    assert late.token.reason == last.reason


# --- links ---


def test_a_cancel_of_any_parent_reaches_a_linked_token() -> None:
    for which in range(3):
        parents = [CancelSource(f"parent {n}") for n in range(3)]
        job = CancelSource("job", parents[0].token)
        for parent in parents[1:]:
            job.link(parent.token)
        parents[which].cancel(STOP)
        assert job.token.reason == Reason(Cause.PARENT, f"parent {which}", STOP)
        assert all(not parent.token._below for parent in parents)


def test_work_changes_hands_by_linking_and_unlinking() -> None:
    turn, session = CancelSource("turn"), CancelSource("session")
    call = CancelSource("call")
    of_turn = call.link(turn.token)
    call.link(session.token)
    assert of_turn.unlink()
    assert not of_turn.unlink()
    turn.cancel(STOP)
    assert not call.token.cancelled
    session.cancel(Cause.SHUTDOWN)
    assert call.token.cancelled


def test_unlink_after_a_cancel_or_an_end_is_too_late() -> None:
    parent = CancelSource("parent")
    cancelled, ended = CancelSource("cancelled"), CancelSource("ended")
    links = [cancelled.link(parent.token), ended.link(parent.token)]
    ended.seal()
    parent.cancel(STOP)
    assert [link.unlink() for link in links] == [False, False]
    assert cancelled.token.cancelled


def test_linking_under_a_cancelled_token_cancels() -> None:
    dead, job = CancelSource("dead"), CancelSource("job")
    dead.cancel(STOP)
    link = job.link(dead.token)
    assert job.token.reason == Reason(Cause.PARENT, "dead", STOP)
    assert not link.unlink()


def test_linking_under_an_ended_token_is_refused_and_changes_nothing() -> None:
    ended, job = CancelSource("ended"), CancelSource("job")
    ended.seal()
    with pytest.raises(TokenEnded):
        job.link(ended.token)
    assert not job.token.cancelled
    assert not job.token._above
    assert not ended.token._below


def test_linking_what_is_over_does_nothing() -> None:
    parent = CancelSource("parent")
    for over in ("seal", "cancel"):
        job = CancelSource("job")
        assert job.seal() if over == "seal" else job.cancel(STOP)
        link = job.link(parent.token)
        assert isinstance(link, Link)
        assert not link.unlink()
    assert not parent.token._below


def test_a_circle_is_refused() -> None:
    top = CancelSource("top")
    middle = CancelSource("middle", top.token)
    bottom = CancelSource("bottom", middle.token)
    other = CancelSource("other")
    other.link(bottom.token)
    for above, below in ((top, top), (top, middle), (top, bottom), (top, other)):
        with pytest.raises(ValueError, match=f"cannot be above {above.token.name}: it is below"):
            above.link(below.token)
    bottom.link(top.token)
    top.cancel(STOP)
    assert other.token.cancelled


def test_a_diamond_is_flagged_and_delivered_once() -> None:
    top = CancelSource("top")
    sides = [CancelSource(f"side {n}", top.token) for n in range(4)]
    bottom = CancelSource("bottom")
    for side in sides:
        bottom.link(side.token)
    fired: list[int] = []
    bridge(bottom.token, lambda: fired.append(1))
    top.cancel(STOP)
    assert fired == [1]
    assert bottom.token.reason == Reason(Cause.PARENT, "top", STOP)


def test_a_link_to_a_cancelled_parent_is_not_kept_by_the_others() -> None:
    session = CancelSource("session")
    for _ in range(100):
        turn = CancelSource("turn")
        call = CancelSource("call", turn.token)
        call.link(session.token)
        turn.cancel(STOP)
    assert not session.token._below
