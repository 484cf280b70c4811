"""Commits: the log, its order, keys, commits that come together, cancelled writes, closing."""

from collections.abc import Awaitable, Callable

import anyio
import anyio.lowlevel
import msgspec

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
    DuplicateKey,
    OutOfOrder,
    SessionHead,
    StaleEpoch,
    Store,
    StoreFailed,
    commit_one,
)
from bargein.contracts.tool import CallResult, CallStatus, Effect, ProcessEnd, StopDetail
from bargein.testing.store_conformance.scene import (
    Checks,
    Scene,
    claimed,
    equal,
    key,
    log,
    looked,
    made,
    refused,
    said,
    step,
    written,
)

COMMIT_CHECKS = Checks()

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


# --- the log


@COMMIT_CHECKS.of_store
async def events_come_back_as_they_were(store: Store) -> None:
    head = await made(store, "s")
    await commit_one(store, step(head, *ONE_OF_EACH, at=7.5))
    wanted = [Recorded(seq, 7.5, event) for seq, event in enumerate(ONE_OF_EACH, 1)]
    equal(await store.events("s"), wanted)


@COMMIT_CHECKS.of_store
async def events_are_read_from_a_place_and_by_pages(store: Store) -> None:
    await written(store, "a", 3)
    await written(store, "b", 10)
    await written(store, "c", 3)
    equal([one.seq for one in await store.events("b")], list(range(1, 11)))
    page = await store.events("b", after=3, limit=4)
    equal([(one.seq, one.event) for one in page], [(n, said(n)) for n in (4, 5, 6, 7)])
    equal([one.seq for one in await store.events("b", after=9, limit=4)], [10])
    equal(await store.events("b", after=10), [])
    equal(await store.events("b", after=99), [])
    equal(await store.events("b", limit=0), [])


@COMMIT_CHECKS.of_store
async def a_page_ends_when_it_has_enough_bytes(store: Store) -> None:
    head = await made(store, "s")
    await commit_one(store, step(head, *(TextCheckpoint("t", "x" * 1_000) for _ in range(5))))
    equal(len(await store.events("s", bytes_max=1)), 1, "at least one event")
    equal(len(await store.events("s", bytes_max=1_500)), 2)
    equal(len(await store.events("s", after=4, bytes_max=10**6)), 1)
    equal(len(await store.events("s", bytes_max=10**6)), 5)


@COMMIT_CHECKS.of_scene
async def an_acknowledged_commit_is_there_for_the_next_owner(scene: Scene) -> None:
    """Also if the store was never closed."""
    store = scene.store
    heads = [await made(store, f"s{number}") for number in range(10)]
    for head in heads:
        first = step(head, said(1), state=b"one", title="T", keys=(key("c"),), text="hello")
        second = step(head, said(2), said(3), expected_seq=1, state=b"two", unfinished=True)
        equal(await store.commit([first, second]), [None, None])
    again = await scene.take_over("two")
    for head in heads:
        now = await looked(again, head.id)
        equal((now.seq, now.state, now.title), (3, b"two", "T"), head.id)
        equal(await log(again, head.id), [said(1), said(2), said(3)], head.id)
        equal(await again.find_key(head.id, "ann", "c"), key("c"), head.id)
    equal(len(await again.search("hello")), 10)
    equal(await again.unfinished(), [head.id for head in heads])


# --- order


@COMMIT_CHECKS.of_store
async def a_commit_out_of_order_is_refused(store: Store) -> None:
    head = await written(store, "s", 2)
    for wrong in (0, 1, 3):
        commit = step(head, said(3), expected_seq=wrong, state=b"no")
        await refused(OutOfOrder, commit_one(store, commit), f"at {wrong}")
    equal(await store.head("s"), head)
    equal(len(await store.events("s")), 2)


@COMMIT_CHECKS.of_store
async def of_many_commits_at_the_same_place_one_wins(store: Store) -> None:
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
    winners = [outcome for outcome in outcomes if outcome != "refused"]
    equal((len(outcomes), len(winners)), (20, 1), "answers, and winners among them")
    equal((await looked(store, "s")).state, winners[0].encode())
    equal(await log(store, "s"), [said(int(winners[0]))])


@COMMIT_CHECKS.of_store
async def writes_of_a_session_happen_in_the_order_of_asking(store: Store) -> None:
    head = await made(store, "s")

    async def write(place: int, started: anyio.Event) -> None:
        started.set()
        await commit_one(store, step(head, said(place), expected_seq=place, state=b"%d" % place))

    async with anyio.create_task_group() as group:
        for place in range(50):
            started = anyio.Event()
            group.start_soon(write, place, started)
            await started.wait()
    equal(await log(store, "s"), [said(number) for number in range(50)])


# --- keys


@COMMIT_CHECKS.of_store
async def a_key_is_found_again(store: Store) -> None:
    head = await made(store, "s")
    await commit_one(store, step(head, said(1), keys=(key("c1"), key("c2", message="m2"))))
    equal(await store.find_key("s", "ann", "c1"), key("c1"))
    equal(await store.find_key("s", "ann", "c2"), key("c2", message="m2"))
    equal(await store.find_key("s", "bob", "c1"), None)
    equal(await store.find_key("s", "ann", "c3"), None)
    equal(await store.find_key("t", "ann", "c1"), None)


@COMMIT_CHECKS.of_store
async def a_key_is_unique_by_session_sender_and_client_id(store: Store) -> None:
    head, other = await made(store, "s"), await made(store, "t")
    await commit_one(store, step(head, said(1), keys=(key("c1"),)))
    head = await looked(store, "s")
    for keys in (
        (key("c9"), key("c1", message="m2")),
        (key("c8"), key("c8", message="m2")),
    ):
        await refused(DuplicateKey, commit_one(store, step(head, said(2), keys=keys)))
    equal(await store.head("s"), head)
    equal(await store.find_key("s", "ann", "c9"), None, "a key of a refused commit")
    await commit_one(store, step(head, said(2), keys=(key("c1", sender="bob"),)))
    await commit_one(store, step(other, said(1), keys=(key("c1"),)))


# --- together: one fails, the others do not


@COMMIT_CHECKS.of_store
async def a_refused_commit_touches_no_other_beside_it(store: Store) -> None:
    heads = [await made(store, f"s{number:02}") for number in range(40)]
    for head in heads[::4]:
        await claimed(store, head.id)
    errors: list[str] = []

    async def write(head: SessionHead, number: int) -> None:
        keys = (key("c"), key("c")) if number % 4 == 1 else ()
        place = 5 if number % 4 == 2 else 0
        try:
            await commit_one(store, step(head, said(number), expected_seq=place, keys=keys))
        except (StaleEpoch, OutOfOrder, DuplicateKey) as error:
            errors.append(type(error).__name__)

    async with anyio.create_task_group() as group:
        for number, head in enumerate(heads):
            group.start_soon(write, head, number)
    equal(sorted(errors), ["DuplicateKey"] * 10 + ["OutOfOrder"] * 10 + ["StaleEpoch"] * 10)
    for number, head in enumerate(heads):
        equal(await log(store, head.id), [said(number)] if number % 4 == 3 else [], head.id)


@COMMIT_CHECKS.of_store
async def each_commit_of_a_call_has_its_own_outcome(store: Store) -> None:
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
    kinds = [None if outcome is None else type(outcome) for outcome in outcomes]
    equal(kinds, [None, StaleEpoch, None, UnicodeEncodeError, DuplicateKey, OutOfOrder, None])
    equal(await log(store, "ann"), [said(1), said(2)])
    equal((await looked(store, "ann")).state, b"second")
    equal([one.at for one in await store.events("bob")], [2.0])
    equal(await store.head("eve"), eve)


@COMMIT_CHECKS.of_store
async def a_long_commit_is_whole_beside_a_refused_one(store: Store) -> None:
    long, short = await made(store, "long"), await made(store, "short")
    events = [said(number) for number in range(700)]
    outcomes = await store.commit(
        [step(long, *events, keys=(key("c1"),)), step(short, said(1), epoch=short.epoch + 9)]
    )
    equal([type(outcome) for outcome in outcomes], [type(None), StaleEpoch])
    equal(await log(store, "long"), events)
    page = await store.events("long", after=100, limit=50)
    equal([one.event for one in page], events[100:150])
    # If it is refused itself, nothing of it stays.
    again = step(await looked(store, "long"), *events, keys=(key("c2"), key("c1")))
    await refused(DuplicateKey, commit_one(store, again))
    equal(await store.find_key("long", "ann", "c2"), None)
    await commit_one(store, msgspec.structs.replace(again, keys=(key("c2"),)))
    equal(await log(store, "long"), events * 2)


@COMMIT_CHECKS.of_store
async def a_call_without_commits_succeeds(store: Store) -> None:
    equal(await store.commit([]), [])


@COMMIT_CHECKS.of_store
async def values_that_cannot_be_kept_are_refused_at_once(store: Store) -> None:
    head = await made(store, "s")
    half = "\ud800"
    for about, commit in {
        "a time that is not a number": step(head, said(1), at=float("nan")),
        "a title that is not Unicode": step(head, said(1), title=half),
        "a text that is not Unicode": step(head, said(1), text=half),
        "a text without an event": step(head, text="nothing said it"),
        "a key that is not Unicode": step(head, said(1), keys=(key(half),)),
        "an event that is not Unicode": step(head, TextCheckpoint("turn", half)),
        "a place before the beginning": step(head, said(1), expected_seq=-1),
        "a place beyond the last": step(head, said(1), expected_seq=2**32),
    }.items():
        await refused(ValueError, commit_one(store, commit), about)
    await refused(ValueError, store.create("t", root="t", at=float("inf")))
    equal(await store.head("s"), head)
    equal(await store.head("t"), None)


# --- cancelled and closed


@COMMIT_CHECKS.of_store
async def a_cancelled_write_is_decided_when_the_session_is_read(store: Store) -> None:
    head = await made(store, "s")
    for number in range(30):
        async with anyio.create_task_group() as group:
            commit = step(head, said(number), keys=(key(f"c{number}"),))
            group.start_soon(commit_one, store, commit)
            for _ in range(number % 3):
                await anyio.lowlevel.checkpoint()
            group.cancel_scope.cancel()
        now = await looked(store, "s")
        found = await store.find_key("s", "ann", f"c{number}")
        equal(now.seq - head.seq, 0 if found is None else 1, "events of a cancelled write")
        await anyio.sleep(0.002)
        equal(await store.head("s"), now, "the session some time later")
        head = now


@COMMIT_CHECKS.of_store
async def a_closed_store_writes_nothing(store: Store) -> None:
    ann, bob = await made(store, "ann"), await made(store, "bob")
    await store.aclose()
    for commits in ([step(ann, said(1))], [step(ann, said(1)), step(bob, said(1))]):
        try:
            outcomes = await store.commit(commits)
        except StoreFailed:
            continue
        equal([type(outcome) for outcome in outcomes], [StoreFailed] * len(commits))


@COMMIT_CHECKS.of_scene
async def after_closing_every_operation_says_so(scene: Scene) -> None:
    store = scene.store
    head = await made(store, "s")
    await store.aclose()
    await store.aclose()
    attempts: dict[str, Callable[[], Awaitable[object]]] = {
        "commit": lambda: commit_one(store, step(head, said(1))),
        "create": lambda: store.create("t", root="t", at=0.0),
        "claim": lambda: store.claim("s"),
        "delete": lambda: store.delete("s"),
        "head": lambda: store.head("s"),
        "events": lambda: store.events("s"),
        "find_key": lambda: store.find_key("s", "ann", "c"),
        "sessions": store.sessions,
        "unfinished": store.unfinished,
        "search": lambda: store.search("x"),
        "backup": lambda: store.backup(str(scene.directory / "late")),
    }
    for about, attempt in attempts.items():
        error = await refused(StoreFailed, attempt(), about)
        equal("closed" in str(error), True, f"{about} says that it is closed ({error})")
