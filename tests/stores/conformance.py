"""What every store must do. A store is tested by a subclass that says how to open one.

class TestMine(StoreConformance):
    @pytest.fixture
    def opener(self, tmp_path: Path) -> Opener: ...
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Protocol

import anyio
import msgspec
import pytest

from bargein.cancel import Cause, Reason
from bargein.contracts.event import (
    AgentState,
    AssistantSaid,
    CallEnded,
    CallStarted,
    Event,
    MessageAccepted,
    Recorded,
    TextCheckpoint,
    TurnOutcome,
    TurnSettled,
    TurnStarted,
)
from bargein.contracts.message import Attachment, Disposition, Message, Mode
from bargein.contracts.model import AssistantMessage, Image, Reasoning, Text, ToolCall, Usage
from bargein.contracts.receipt import Receipt, ReceiptStatus, Scope, StepKind, StoppedStep
from bargein.contracts.store import (
    AcceptKey,
    Commit,
    DuplicateKey,
    OutOfOrder,
    SessionHead,
    StaleEpoch,
    Store,
    StoreFailed,
    commit_one,
)
from bargein.contracts.tool import CallResult, CallStatus, Effect, ProcessEnd, StopDetail
from bargein.errors import BugError, UserError


class Opener(Protocol):
    async def open(self) -> Store: ...

    async def open_backup(self, path: Path) -> Store:
        """A store with what a backup has."""
        ...


def said(number: int) -> Event:
    return TextCheckpoint("turn", f"text {number}")


def step(head: SessionHead, *events: Event, **changes: object) -> Commit:
    """The next commit after `head`."""
    commit = Commit(
        session=head.id,
        root=head.root,
        epoch=head.epoch,
        expected_seq=head.seq,
        at=1.0,
        events=events,
        state=b"",
    )
    return msgspec.structs.replace(commit, **changes)


async def made(store: Store, session: str, at: float = 0.0) -> SessionHead:
    head = await store.create(session, root=session, at=at)
    assert head is not None
    return head


async def looked(store: Store, session: str) -> SessionHead:
    head = await store.head(session)
    assert head is not None
    return head


async def written(store: Store, session: str, count: int) -> SessionHead:
    """A session with `count` events."""
    await commit_one(store, step(await made(store, session), *map(said, range(1, count + 1))))
    return await looked(store, session)


def key(client_id: str, *, sender: str = "ann", message: str = "m1") -> AcceptKey:
    return AcceptKey(sender, client_id, message, b"hash")


ONE_OF_EACH: tuple[Event, ...] = (
    MessageAccepted(
        Message(
            id="m1",
            sender="ann",
            mode=Mode.ROLLBACK,
            content=(Text("héllo\x00"), Image("image/png", b"\x00\xff")),
            attachments=(Attachment("a.bin", "application/octet-stream", b"\x00" * 3),),
            client_id="c1",
            group="album",
        ),
        Disposition.STEERING,
        "t1",
    ),
    TurnStarted("t1", ("m1", "m2")),
    AssistantSaid(
        "t1",
        AssistantMessage((Reasoning("hm", "sig"), Text("yes"), ToolCall("c1", "sh", '{"a": 1}'))),
        "openai:x",
        Usage(1, 2, 3, True),
        partial=True,
    ),
    CallStarted("t1", ToolCall("c1", "sh", "{"), Effect.UNKNOWN, "sh"),
    CallEnded(
        "t1",
        "c1",
        CallResult(
            CallStatus.STOPPED,
            (Text("half"),),
            "killed",
            StopDetail(1.5, "cgroup", True, (ProcessEnd(7, "sh", "SIGKILL", 0.5),)),
        ),
    ),
    AgentState("t1", b"\x00\x01"),
    TurnSettled(
        "t1",
        TurnOutcome.STOPPED,
        Receipt(
            ReceiptStatus.STOPPED,
            Scope.TURN,
            "s",
            "t1",
            Reason(Cause.PARENT, "up", Reason(Cause.USER_STOP, "Ctrl-C")),
            steps=(StoppedStep(StepKind.TOOL, "sh", CallStatus.STOPPED, 1.0, "c1"),),
            held=("m3",),
        ),
    ),
)


@pytest.mark.anyio
class SearchConformance:
    """What a store must find, however it looks for it."""

    @pytest.fixture
    def opener(self, tmp_path: Path) -> Opener:
        raise NotImplementedError

    @pytest.fixture
    async def store(self, opener: Opener, anyio_backend: object) -> AsyncIterator[Store]:
        store = await opener.open()
        yield store
        await store.aclose()

    async def test_search_finds_the_beginnings_of_words(self, store: Store) -> None:
        head = await made(store, "s")
        await commit_one(store, step(head, said(1), said(2), at=1.0, text="The Quick brown fox"))
        await commit_one(store, step(await looked(store, "s"), said(3), at=2.0, text="a quick one"))
        await commit_one(
            store, step(await made(store, "t"), said(1), at=3.0, text="slow; quickly!")
        )

        async def places(words: str, limit: int = 50) -> list[tuple[str, int]]:
            return [(one.session, one.seq) for one in await store.search(words, limit=limit)]

        assert await places("quick") == [("t", 1), ("s", 3), ("s", 2)]
        assert await places("QUICK", limit=2) == [("t", 1), ("s", 3)]
        assert await places("fox qui") == [("s", 2)]
        assert await places("uick") == []
        assert await places("fox slow") == []
        for nothing in ("", "  ", '"', "*", "-'%_"):
            assert await places(nothing) == []
        assert await places('fox"*') == [("s", 2)]
        assert await places("fox OR slow") == []
        await store.delete("s")
        assert await places("quick") == [("t", 1)]

    async def test_search_looks_only_below_the_roots_that_are_named(self, store: Store) -> None:
        for number in range(5):
            await commit_one(store, step(await made(store, f"s{number}"), said(1), text="the word"))
        root = await looked(store, "s1")
        under = await store.create("s1/c.1", root="s1", at=9.0, epoch=root.epoch)
        assert under is not None
        await commit_one(store, step(under, said(1), at=9.0, text="a word below"))

        async def found(*roots: str, limit: int = 50) -> list[str]:
            hits = await store.search("word", roots=frozenset(roots), limit=limit)
            return [one.session for one in hits]

        assert await found("s1") == ["s1/c.1", "s1"]
        assert await found("s0", "s4", "s9") == ["s4", "s0"]
        # The others do not use up the limit.
        assert await found("s0", limit=1) == ["s0"]
        assert await found("s1/c.1", "s") == []
        assert await found() == []

    @pytest.mark.parametrize(
        ("text", "words", "found"),
        [
            ("Crème brûlée", "creme BRULEE", True),
            ("creme", "crème", True),
            ("Straße", "STRASSE", True),
            ("ΑΒΓ", "αβγ", True),
            ("snake_case_name", "case", True),
            ("path/to/file.py:12", "file py 12", True),
            ("今日は東京へ行く", "東京", True),
            ("今日は東京へ行く", "京東", False),
            ("나는 학교에 간다", "학교", True),
            ("mixed東京text", "text", True),
            ("null\x00byte", "byte", True),
            ("🎉 party", "party", True),
            ("it's", "it", True),
        ],
    )
    async def test_search_in_many_scripts(
        self, store: Store, text: str, words: str, found: bool
    ) -> None:
        await commit_one(store, step(await made(store, "s"), said(1), text=text))
        assert bool(await store.search(words)) is found

    async def test_an_excerpt_shows_the_word_in_its_place(self, store: Store) -> None:
        long = "padding " * 300 + "NEEDLE in the hay " + "more " * 300
        await commit_one(store, step(await made(store, "s"), said(1), text=long))
        (found,) = await store.search("needle")
        assert "NEEDLE in the hay" in found.excerpt
        assert len(found.excerpt) < 200


class StoreConformance(SearchConformance):
    # --- sessions and heads

    async def test_a_new_session_is_empty_and_owned_by_its_maker(self, store: Store) -> None:
        head = await store.create("s", root="s", at=5.0)
        assert head is not None
        assert (head.id, head.root, head.seq, head.state, head.title) == ("s", "s", 0, b"", "")
        assert (head.created_at, head.updated_at) == (5.0, 5.0)
        assert await store.head("s") == head
        await commit_one(store, step(head, said(1)))

    async def test_a_session_is_made_once(self, store: Store) -> None:
        head = await made(store, "s")
        assert await store.create("s", root="s", at=9.0) is None
        assert await store.create("s", root="other", at=9.0, epoch=1) is None
        assert await store.head("s") == head

    async def test_what_does_not_exist_is_not_found(self, store: Store) -> None:
        assert await store.head("s") is None
        assert await store.claim("s") is None
        assert await store.events("s") == []
        assert await store.find_key("s", "ann", "c") is None
        assert await store.delete("s") is False
        assert await store.sessions() == []
        assert await store.unfinished() == []
        assert await store.search("x") == []

    async def test_the_head_is_what_the_last_commit_said(self, store: Store) -> None:
        head = await made(store, "s", at=1.0)
        await commit_one(store, step(head, said(1), said(2), at=2.0, state=b"one", title="first"))
        second = msgspec.structs.replace(
            head, seq=2, state=b"one", title="first", updated_at=2.0, created_at=1.0
        )
        assert await store.head("s") == second
        await commit_one(store, step(second, at=3.0, state=b"two"))
        third = msgspec.structs.replace(second, state=b"two", updated_at=3.0)
        assert await store.head("s") == third
        await commit_one(store, step(third, at=3.0, state=b"two", title=""))
        assert (await looked(store, "s")).title == ""

    # --- the log

    async def test_events_come_back_as_they_were(self, store: Store) -> None:
        head = await made(store, "s")
        await commit_one(store, step(head, *ONE_OF_EACH, at=7.5))
        expected = [Recorded(seq, 7.5, event) for seq, event in enumerate(ONE_OF_EACH, 1)]
        assert await store.events("s") == expected

    async def test_events_are_read_from_a_place_and_by_pages(self, store: Store) -> None:
        await written(store, "a", 3)
        await written(store, "b", 10)
        await written(store, "c", 3)
        assert [one.seq for one in await store.events("b")] == list(range(1, 11))
        page = await store.events("b", after=3, limit=4)
        assert [(one.seq, one.event) for one in page] == [(n, said(n)) for n in (4, 5, 6, 7)]
        assert [one.seq for one in await store.events("b", after=9, limit=4)] == [10]
        assert await store.events("b", after=10) == []
        assert await store.events("b", after=99) == []
        assert await store.events("b", limit=0) == []

    async def test_a_commit_out_of_order_is_refused(self, store: Store) -> None:
        head = await written(store, "s", 2)
        for wrong in (0, 1, 3):
            with pytest.raises(OutOfOrder):
                await commit_one(store, step(head, said(3), expected_seq=wrong, state=b"no"))
        assert await store.head("s") == head
        assert len(await store.events("s")) == 2

    async def test_of_many_at_the_same_place_one_wins(self, store: Store) -> None:
        head = await made(store, "s")
        outcomes: list[str] = []

        async def write(number: int) -> None:
            try:
                await commit_one(store, step(head, said(number), state=str(number).encode()))
            except OutOfOrder:
                outcomes.append("refused")
            else:
                outcomes.append(str(number))

        async with anyio.create_task_group() as group:
            for number in range(20):
                group.start_soon(write, number)
        (winner,) = set(outcomes) - {"refused"}
        assert len(outcomes) == 20
        assert (await looked(store, "s")).state == winner.encode()
        assert [one.event for one in await store.events("s")] == [said(int(winner))]

    # --- epochs

    async def test_a_claim_raises_the_epoch_and_keeps_the_rest(self, store: Store) -> None:
        head = await written(store, "s", 2)
        claimed = await store.claim("s")
        assert claimed is not None
        assert claimed.epoch > head.epoch
        assert msgspec.structs.replace(claimed, epoch=head.epoch) == head
        assert await store.head("s") == claimed

    async def test_who_was_claimed_from_can_write_no_more(self, store: Store) -> None:
        head = await made(store, "s")
        claimed = await store.claim("s")
        assert claimed is not None
        for epoch in (head.epoch, claimed.epoch + 1, 0, -1):
            with pytest.raises(StaleEpoch):
                await commit_one(store, step(head, said(1), epoch=epoch))
        assert await store.events("s") == []
        await commit_one(store, step(claimed, said(1)))

    @pytest.mark.parametrize("keys", [(), (key("c1"),)], ids=["no key", "a key"])
    async def test_who_was_claimed_from_is_told_so_however_far_the_log_has_gone(
        self, store: Store, keys: tuple[AcceptKey, ...]
    ) -> None:
        old = await written(store, "s", 60)
        new = await store.claim("s")
        assert new is not None
        await commit_one(store, step(new, *(said(number) for number in range(200))))
        events = [said(number) for number in range(10)]
        with pytest.raises(StaleEpoch):
            await commit_one(store, step(old, *events, keys=keys))
        with pytest.raises(OutOfOrder):
            await commit_one(store, step(new, *events, keys=keys))
        assert (await looked(store, "s")).seq == 260

    async def test_a_claim_of_one_session_is_not_one_of_another(self, store: Store) -> None:
        first, second = await made(store, "a"), await made(store, "b")
        await store.claim("a")
        await commit_one(store, step(second, said(1)))
        with pytest.raises(StaleEpoch):
            await commit_one(store, step(first, said(1)))

    async def test_claims_at_once_all_differ_and_the_highest_holds(self, store: Store) -> None:
        await made(store, "s")
        heads: list[SessionHead] = []

        async def claim() -> None:
            head = await store.claim("s")
            assert head is not None
            heads.append(head)

        async with anyio.create_task_group() as group:
            for _ in range(10):
                group.start_soon(claim)
        epochs = sorted(head.epoch for head in heads)
        assert len(set(epochs)) == 10
        assert (await looked(store, "s")).epoch == epochs[-1]

    async def test_an_epoch_is_never_given_twice(self, store: Store) -> None:
        """Also not to another session of the same name: its old owner may still be writing."""
        old = await made(store, "s")
        await store.delete("s")
        new = await made(store, "s")
        assert new.epoch > old.epoch
        with pytest.raises(StaleEpoch):
            await commit_one(store, step(old, said(1)))

    async def test_a_commit_to_a_deleted_session_is_stale(self, store: Store) -> None:
        head = await written(store, "s", 1)
        assert await store.delete("s")
        with pytest.raises(StaleEpoch):
            await commit_one(store, step(head, said(2)))
        assert await store.head("s") is None

    # --- sessions under a root

    async def test_a_session_under_a_root_has_the_roots_epoch(self, store: Store) -> None:
        root = await made(store, "root")
        child = await store.create("child", root="root", at=0.0, epoch=root.epoch)
        assert child is not None
        assert (child.root, child.epoch) == ("root", root.epoch)
        await commit_one(store, step(child, said(1)))
        claimed = await store.claim("root")
        assert claimed is not None
        assert (await looked(store, "child")).epoch == claimed.epoch
        with pytest.raises(StaleEpoch):
            await commit_one(store, step(child, said(2), expected_seq=1))
        await commit_one(store, step(child, said(2), expected_seq=1, epoch=claimed.epoch))

    async def test_a_commit_names_the_root_that_its_session_is_under(self, store: Store) -> None:
        root, other = await made(store, "root"), await made(store, "other")
        child = await store.create("child", root="root", at=0.0, epoch=root.epoch)
        assert child is not None
        await commit_one(store, step(child, said(1)))
        child = await looked(store, "child")
        for wrong in (
            step(child, said(2), root="child"),
            step(child, said(2), root="other", epoch=other.epoch),
            step(other, said(1), root="root", epoch=root.epoch),
        ):
            with pytest.raises(BugError):
                await commit_one(store, wrong)
        await commit_one(store, step(child, said(2)))
        assert await store.delete("root")
        child = await store.create("child", root="other", at=0.0, epoch=other.epoch)
        assert child is not None
        await commit_one(store, step(child, said(3)))
        assert (await looked(store, "child")).root == "other"

    async def test_only_the_roots_owner_can_make_one_under_it(self, store: Store) -> None:
        root = await made(store, "root")
        for epoch in (None, root.epoch - 1, root.epoch + 1):
            with pytest.raises(StaleEpoch):
                await store.create("child", root="root", at=0.0, epoch=epoch)
        with pytest.raises(StaleEpoch):
            await store.create("child", root="nobody", at=0.0, epoch=root.epoch)
        assert await store.head("child") is None

    async def test_only_a_root_can_be_claimed(self, store: Store) -> None:
        root = await made(store, "root")
        child = await store.create("child", root="root", at=0.0, epoch=root.epoch)
        assert await store.claim("child") is None
        assert await store.head("child") == child

    async def test_a_commit_that_names_the_wrong_root_is_a_bug(self, store: Store) -> None:
        first, second = await made(store, "a"), await made(store, "b")
        with pytest.raises(BugError):
            await commit_one(store, step(first, said(1), root="b", epoch=second.epoch))
        assert await store.events("a") == []

    # --- keys

    async def test_a_key_is_found_again(self, store: Store) -> None:
        head = await made(store, "s")
        await commit_one(store, step(head, said(1), keys=(key("c1"), key("c2", message="m2"))))
        assert await store.find_key("s", "ann", "c1") == key("c1")
        assert await store.find_key("s", "ann", "c2") == key("c2", message="m2")
        assert await store.find_key("s", "bob", "c1") is None
        assert await store.find_key("s", "ann", "c3") is None
        assert await store.find_key("t", "ann", "c1") is None

    async def test_a_key_is_unique_by_session_sender_and_client_id(self, store: Store) -> None:
        head, other = await made(store, "s"), await made(store, "t")
        await commit_one(store, step(head, said(1), keys=(key("c1"),)))
        head = await looked(store, "s")
        with pytest.raises(DuplicateKey):
            await commit_one(store, step(head, said(2), keys=(key("c9"), key("c1", message="m2"))))
        with pytest.raises(DuplicateKey):
            await commit_one(store, step(head, said(2), keys=(key("c8"), key("c8", message="m2"))))
        assert await store.head("s") == head
        assert await store.find_key("s", "ann", "c9") is None
        await commit_one(store, step(head, said(2), keys=(key("c1", sender="bob"),)))
        await commit_one(store, step(other, said(1), keys=(key("c1"),)))

    # --- one fails, the others do not

    async def test_a_refused_commit_harms_none_beside_it(self, store: Store) -> None:
        heads = [await made(store, f"s{number:02}") for number in range(40)]
        for head in heads[::4]:
            await store.claim(head.id)
        refused: list[str] = []

        async def write(head: SessionHead, number: int) -> None:
            keys = (key("c"), key("c")) if number % 4 == 1 else ()
            place = 5 if number % 4 == 2 else 0
            try:
                await commit_one(store, step(head, said(number), expected_seq=place, keys=keys))
            except (StaleEpoch, OutOfOrder, DuplicateKey) as error:
                refused.append(type(error).__name__)

        async with anyio.create_task_group() as group:
            for number, head in enumerate(heads):
                group.start_soon(write, head, number)
        assert sorted(refused) == ["DuplicateKey"] * 10 + ["OutOfOrder"] * 10 + ["StaleEpoch"] * 10
        for number, head in enumerate(heads):
            events = [one.event for one in await store.events(head.id)]
            assert events == ([said(number)] if number % 4 == 3 else [])

    async def test_what_cannot_be_kept_is_refused_at_once(self, store: Store) -> None:
        head = await made(store, "s")
        half = "\ud800"
        bad_commits = [
            step(head, said(1), at=float("nan")),
            step(head, said(1), title=half),
            step(head, said(1), text=half),
            step(head, text="nothing said it"),
            step(head, said(1), keys=(key(half),)),
            step(head, TextCheckpoint("turn", half)),
            step(head, said(1), expected_seq=-1),
            step(head, said(1), expected_seq=2**32),
        ]
        for commit in bad_commits:
            with pytest.raises(ValueError):  # noqa: PT011  (UnicodeEncodeError is one)
                await commit_one(store, commit)
        with pytest.raises(ValueError, match="finite"):
            await store.create("t", root="t", at=float("inf"))
        assert await store.head("s") == head

    # --- order and cancellation

    async def test_writes_of_a_session_happen_in_the_order_of_asking(self, store: Store) -> None:
        head = await made(store, "s")

        async def write(place: int) -> None:
            await commit_one(
                store, step(head, said(place), expected_seq=place, state=b"%d" % place)
            )

        async with anyio.create_task_group() as group:
            for place in range(50):
                started = anyio.Event()

                async def one(place: int = place, started: anyio.Event = started) -> None:
                    started.set()
                    await write(place)

                group.start_soon(one)
                await started.wait()
        assert [one.event for one in await store.events("s")] == [said(n) for n in range(50)]

    async def test_each_of_many_is_decided_for_itself(self, store: Store) -> None:
        ann, bob, eve = [await made(store, name) for name in ("ann", "bob", "eve")]
        await commit_one(store, step(eve, said(1), keys=(key("c1"),)))
        eve = await looked(store, "eve")
        outcomes = await store.commit(
            [
                step(ann, said(1), state=b"first"),
                step(bob, said(1), epoch=bob.epoch - 1),
                step(ann, said(2), state=b"second", expected_seq=1),
                step(bob, said(1), text="half of a pair: \ud800"),
                step(eve, said(2), keys=(key("c1"),)),
                step(ann, said(9), expected_seq=7),
                step(bob, said(1), at=2.0),
            ]
        )
        assert [type(outcome) for outcome in outcomes] == [
            type(None),
            StaleEpoch,
            type(None),
            UnicodeEncodeError,
            DuplicateKey,
            OutOfOrder,
            type(None),
        ]
        assert [one.event for one in await store.events("ann")] == [said(1), said(2)]
        assert (await looked(store, "ann")).state == b"second"
        assert [one.at for one in await store.events("bob")] == [2.0]
        assert await store.head("eve") == eve

    async def test_a_long_commit_beside_one_that_is_refused(self, store: Store) -> None:
        long, short = await made(store, "long"), await made(store, "short")
        events = [said(number) for number in range(700)]
        outcomes = await store.commit(
            [step(long, *events, keys=(key("c1"),)), step(short, said(1), epoch=short.epoch + 9)]
        )
        assert [type(outcome) for outcome in outcomes] == [type(None), StaleEpoch]
        assert [one.event for one in await store.events("long")] == events
        page = await store.events("long", after=100, limit=50)
        assert [one.event for one in page] == events[100:150]
        # And if it is to blame itself nothing is left of it.
        again = step(await looked(store, "long"), *events, keys=(key("c2"), key("c1")))
        with pytest.raises(DuplicateKey):
            await commit_one(store, again)
        assert await store.find_key("long", "ann", "c2") is None
        await commit_one(store, msgspec.structs.replace(again, keys=(key("c2"),)))
        assert [one.event for one in await store.events("long")] == events * 2

    async def test_none_at_all_is_as_good_as_done(self, store: Store) -> None:
        assert await store.commit([]) == []

    async def test_a_closed_store_writes_none_of_many(self, store: Store) -> None:
        ann, bob = await made(store, "ann"), await made(store, "bob")
        await store.aclose()
        for commits in ([step(ann, said(1))], [step(ann, said(1)), step(bob, said(1))]):
            with pytest.raises(StoreFailed):
                raise next(filter(None, await store.commit(commits)))

    async def test_a_cancelled_write_is_decided_when_the_session_is_looked_at(
        self, store: Store
    ) -> None:
        head = await made(store, "s")
        for round_number in range(30):
            async with anyio.create_task_group() as group:
                commit = step(head, said(round_number), keys=(key(f"c{round_number}"),))
                group.start_soon(commit_one, store, commit)
                for _ in range(round_number % 3):
                    await anyio.lowlevel.checkpoint()
                group.cancel_scope.cancel()
            now = await looked(store, "s")
            found = await store.find_key("s", "ann", f"c{round_number}")
            assert now.seq - head.seq == (0 if found is None else 1)
            await anyio.sleep(0.002)
            assert await store.head("s") == now
            head = now

    # --- lists

    async def test_sessions_come_last_updated_first_and_by_pages(self, store: Store) -> None:
        for number in range(9):
            await made(store, f"s{number}", at=float(number // 3))
        head = await looked(store, "s0")
        await commit_one(store, step(head, said(1), at=9.0))
        names = ["s0", "s8", "s7", "s6", "s5", "s4", "s3", "s2", "s1"]
        assert [one.id for one in await store.sessions()] == names
        seen: list[str] = []
        before: tuple[float, str] | None = None
        while page := await store.sessions(limit=2, before=before):
            assert len(page) <= 2
            seen += [one.id for one in page]
            before = page[-1].updated_at, page[-1].id
        assert seen == names
        assert (await store.sessions(limit=1)) == [await looked(store, "s0")]

    async def test_sessions_under_a_root_are_listed_apart(self, store: Store) -> None:
        root = await made(store, "root")
        await made(store, "other")
        for name in ("k1", "k2"):
            await store.create(name, root="root", at=1.0, epoch=root.epoch)
        assert [one.id for one in await store.sessions()] == ["root", "other"]
        assert [one.id for one in await store.sessions(under="root")] == ["k2", "k1"]
        assert await store.sessions(under="other") == []
        assert {one.epoch for one in await store.sessions(under="root")} == {root.epoch}

    async def test_unfinished_sessions_are_found_by_their_roots(self, store: Store) -> None:
        for name in ("d", "b", "a", "c"):
            await commit_one(store, step(await made(store, name), said(1), unfinished=name != "c"))
        child = await store.create("x", root="c", at=0.0, epoch=(await looked(store, "c")).epoch)
        assert child is not None
        assert await store.unfinished() == ["a", "b", "d"]
        await commit_one(store, step(child, said(1), unfinished=True))
        assert await store.unfinished() == ["a", "b", "c", "d"]
        assert await store.unfinished(limit=2) == ["a", "b"]
        assert await store.unfinished(limit=2, after="b") == ["c", "d"]
        await commit_one(store, step(await looked(store, "a"), said(2)))
        await store.delete("b")
        await store.delete("x")
        assert await store.unfinished() == ["d"]

    # --- deleting

    async def test_a_deleted_session_is_gone_with_all_under_it(self, store: Store) -> None:
        root = await made(store, "root")
        child = await store.create("child", root="root", at=0.0, epoch=root.epoch)
        assert child is not None
        for head in (root, child, await made(store, "other")):
            await commit_one(
                store, step(head, said(1), keys=(key("c"),), text="hello", unfinished=True)
            )
        assert await store.delete("root") is True
        for name in ("root", "child"):
            assert await store.head(name) is None
            assert await store.events(name) == []
            assert await store.find_key(name, "ann", "c") is None
        assert [one.session for one in await store.search("hello")] == ["other"]
        assert await store.unfinished() == ["other"]
        assert [one.id for one in await store.sessions()] == ["other"]
        assert await store.delete("root") is False
        again = await made(store, "root")
        assert again.seq == 0
        assert await store.events("root") == []
        await commit_one(store, step(again, said(9), keys=(key("c"),)))

    async def test_deleting_one_under_a_root_leaves_the_root(self, store: Store) -> None:
        root = await written(store, "root", 2)
        await store.create("child", root="root", at=0.0, epoch=root.epoch)
        assert await store.delete("child") is True
        assert await store.head("root") == root
        assert len(await store.events("root")) == 2

    async def test_a_stale_owner_cannot_delete(self, store: Store) -> None:
        old = await made(store, "s")
        new = await store.claim("s")
        assert new is not None
        with pytest.raises(StaleEpoch):
            await store.delete("s", epoch=old.epoch)
        assert await store.head("s") == new
        assert await store.delete("s", epoch=new.epoch) is True

    # --- the whole of it

    async def test_a_backup_has_everything_and_stays_as_it_is(
        self, store: Store, opener: Opener, tmp_path: Path
    ) -> None:
        head = await made(store, "s")
        await commit_one(
            store,
            step(head, *ONE_OF_EACH, state=b"st", title="T", keys=(key("c"),), text="hello there"),
        )
        copy = tmp_path / "backup"
        await store.backup(str(copy))
        before = await looked(store, "s")
        await commit_one(store, step(before, said(9)))
        await made(store, "later")

        restored = await opener.open_backup(copy)
        assert await restored.head("s") == before
        assert [one.event for one in await restored.events("s")] == list(ONE_OF_EACH)
        assert await restored.find_key("s", "ann", "c") == key("c")
        assert [one.session for one in await restored.search("hello")] == ["s"]
        assert await restored.head("later") is None
        claimed = await restored.claim("s")
        assert claimed is not None
        assert claimed.epoch > before.epoch
        await commit_one(restored, step(claimed, said(1)))
        await restored.aclose()

    async def test_a_backup_overwrites_nothing(self, store: Store, tmp_path: Path) -> None:
        taken = tmp_path / "taken"
        taken.write_text("precious")
        with pytest.raises(UserError, match=str(taken)):
            await store.backup(str(taken))
        assert taken.read_text() == "precious"

    async def test_after_closing_everything_says_so(self, store: Store, tmp_path: Path) -> None:
        head = await made(store, "s")
        await store.aclose()
        await store.aclose()
        with pytest.raises(StoreFailed, match="closed"):
            await commit_one(store, step(head, said(1)))
        with pytest.raises(StoreFailed, match="closed"):
            await store.head("s")
        with pytest.raises(StoreFailed, match="closed"):
            await store.backup(str(tmp_path / "late"))
