"""The pure heart: whatever is sent in whatever order, no message is lost or in two places."""

from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from bargein.cancel import Cause, Reason
from bargein.contracts.event import (
    UNANSWERED,
    BackgroundEnded,
    Event,
    InterruptLanded,
    MessageAccepted,
    MessagesTaken,
    MessageWithdrawn,
    QueueHeld,
    TurnOutcome,
    TurnSettled,
    TurnStarted,
    UserSaid,
)
from bargein.contracts.message import Message, Mode
from bargein.contracts.model import Text
from bargein.contracts.receipt import Receipt, ReceiptStatus, Scope
from bargein.contracts.tool import CallResult, CallStatus
from bargein.session.commands import (
    BackgroundOver,
    Boundary,
    Close,
    Command,
    Continue,
    Detached,
    Drain,
    Edit,
    Effect,
    End,
    GatherOver,
    GiveSteers,
    Log,
    Move,
    Passivate,
    Pause,
    Refuse,
    RestoreFiles,
    Resume,
    RolledBack,
    Send,
    Settled,
    StartTurn,
    Stop,
    Wake,
    Withdraw,
)
from bargein.session.decide import TABLE, decide, mermaid
from bargein.session.rules.moves import UNASKED_TURNS_MAX, change
from bargein.session.state import Lane, Phase, SessionState

FINISHED = CallResult(CallStatus.FINISHED, (Text("done"),))
IN_BACKGROUND = CallResult(CallStatus.DETACHED, (Text("moved"),))


def message(number: int, mode: Mode = Mode.STEER, group: str | None = None) -> Message:
    return Message(f"m{number}", "user", mode, (Text(f"words {number}"),), group=group)


def run(state: SessionState, *commands: Command) -> tuple[SessionState, list[Effect]]:
    done: list[Effect] = []
    for command in commands:
        state, effects = decide(state, command)
        done.extend(effects)
    return state, done


def started_with(effects: list[Effect]) -> list[tuple[str, ...]]:
    return [tuple(m.id for m in e.messages) for e in effects if isinstance(e, StartTurn)]


def logged(effects: list[Effect]) -> list[Event]:
    return [event for effect in effects if isinstance(effect, Log) for event in effect.events]


def settled(turn: str, outcome: TurnOutcome = TurnOutcome.COMPLETED) -> Settled:
    return Settled(turn, outcome)


def stopped(turn: str, cause: Cause = Cause.USER_STOP) -> Settled:
    receipt = Receipt(ReceiptStatus.STOPPED, Scope.TURN, "s", turn, Reason(cause, "user"), "user")
    return Settled(turn, TurnOutcome.STOPPED, receipt=receipt)


def receipts(effects: list[Effect]) -> list[Receipt]:
    over = [event for event in logged(effects) if isinstance(event, TurnSettled)]
    return [event.receipt for event in over if event.receipt is not None]


RUNNING, _ = run(SessionState(), Send(message(1)))


@pytest.mark.parametrize("mode", list(Mode))
def test_when_idle_every_mode_starts_a_turn(mode: Mode) -> None:
    state, effects = run(SessionState(), Send(message(1, mode)))
    assert state.phase is Phase.RUNNING
    assert started_with(effects) == [("m1",)]


def test_a_second_message_within_the_same_moment_never_starts_a_second_turn() -> None:
    state, effects = run(SessionState(), Send(message(1)), Send(message(2)))
    assert started_with(effects) == [("m1",)]
    assert [m.id for m in state.lane(Lane.STEER)] == ["m2"]


def test_an_interrupt_that_lands_is_answered_next_and_the_queue_goes_on_after_it() -> None:
    _state, effects = run(
        RUNNING,
        Send(message(2, Mode.QUEUE)),
        Send(message(3, Mode.INTERRUPT), "t1", landed=True),
        settled("t1", TurnOutcome.STOPPED),
        settled("t2"),
    )
    assert started_with(effects) == [("m3",), ("m2",)]


def test_an_interrupt_that_came_too_late_is_the_next_message() -> None:
    _state, effects = run(
        RUNNING, Send(message(2, Mode.INTERRUPT), "t1", landed=False), settled("t1")
    )
    assert started_with(effects) == [("m2",)]
    assert not any(isinstance(e, TurnSettled) and e.hidden for e in logged(effects))


def test_interrupts_while_a_turn_settles_are_taken_together_in_order_before_the_queue() -> None:
    _state, effects = run(
        RUNNING,
        Send(message(2, Mode.QUEUE)),
        Send(message(3, Mode.INTERRUPT), "t1", landed=True),
        Send(message(4, Mode.STEER), "t1"),
        Send(message(5, Mode.QUEUE), "t1"),
        Send(message(6, Mode.INTERRUPT), "t1"),
        settled("t1", TurnOutcome.STOPPED),
        settled("t2"),
        settled("t3"),
    )
    assert started_with(effects) == [("m3", "m4", "m6"), ("m2",), ("m5",)]


def test_a_stop_without_a_message_holds_what_waits_until_the_user_continues() -> None:
    state, effects = run(
        RUNNING,
        Send(message(2, Mode.QUEUE)),
        Stop("t1", True, "user", "user_stop"),
        settled("t1", TurnOutcome.STOPPED),
    )
    assert state.phase is Phase.IDLE
    assert state.held
    assert started_with(effects) == []
    state, effects = run(state, Continue())
    assert started_with(effects) == [("m2",)]
    assert not state.held


@pytest.mark.parametrize("mode", [Mode.STEER, Mode.QUEUE])
@pytest.mark.parametrize("reason", ["user_stop", "deadline", "budget"])
def test_a_stop_without_a_message_holds_steers_as_it_holds_the_queue(
    mode: Mode, reason: str
) -> None:
    state, effects = run(
        RUNNING, Send(message(2, mode), "t1"), Stop("t1", True, "user", reason), stopped("t1")
    )
    assert state.held
    assert started_with(effects) == []
    assert [type(event) for event in logged(effects)][1:3] == [InterruptLanded, QueueHeld]
    assert receipts(effects)[0].held == ("m2",)
    _, effects = run(state, Continue())
    assert started_with(effects) == [("m2",)]


def test_a_stop_that_was_never_told_holds_as_one_that_was() -> None:
    """A turn may settle before its `Stop` is decided, if that comes from another thread."""
    steered, _ = run(RUNNING, Send(message(2, Mode.STEER), "t1"))
    told, with_word = run(steered, Stop("t1", True, "user", "user_stop"), stopped("t1"))
    untold, without = run(steered, stopped("t1"))
    assert told == untold
    assert logged(with_word) == logged(without)


@pytest.mark.parametrize("reason", ["client_gone", UNANSWERED, "shutdown"])
def test_a_stop_that_no_person_asked_for_holds_nothing(reason: str) -> None:
    state, effects = run(
        RUNNING,
        Send(message(2, Mode.STEER), "t1"),
        Stop("t1", True, "user", reason),
        stopped("t1", Cause.CLIENT_GONE),
    )
    assert not state.held
    assert started_with(effects) == [("m2",)]


def test_sending_something_lets_go_of_what_is_held_after_it() -> None:
    state, _ = run(
        RUNNING,
        Send(message(2, Mode.QUEUE)),
        Stop("t1", True, "user", "user_stop"),
        settled("t1", TurnOutcome.STOPPED),
    )
    state, effects = run(state, Send(message(3, Mode.QUEUE)), settled("t2"))
    assert started_with(effects) == [("m3",), ("m2",)]


def test_a_stop_aimed_at_a_turn_that_has_ended_touches_nothing() -> None:
    state, effects = run(RUNNING, Stop("t0", False, "user", "user_stop"))
    assert state == RUNNING
    assert effects == [Refuse("too_late", "t0 has ended")]


def test_a_steer_is_taken_at_the_boundary_and_only_once() -> None:
    state, effects = run(RUNNING, Send(message(2)), Boundary("t1"), Boundary("t1"))
    given_ = [tuple(m.id for m in e.messages) for e in effects if isinstance(e, GiveSteers)]
    assert given_ == [("m2",), ()]
    assert state.waiting == ()


def test_a_steer_that_no_boundary_took_is_the_next_message() -> None:
    _state, effects = run(RUNNING, Send(message(2)), settled("t1"))
    assert started_with(effects) == [("m2",)]


def test_a_paused_turn_waits_at_its_boundary_and_an_interrupt_beats_the_pause() -> None:
    state, effects = run(RUNNING, Pause(), Boundary("t1"))
    assert [e for e in effects if isinstance(e, GiveSteers)] == []
    _resumed, effects = run(state, Resume())
    assert [e for e in effects if isinstance(e, GiveSteers)] == [GiveSteers("t1", ())]
    stopped, _ = run(state, Stop("t1", True, "user", "user_stop"))
    assert stopped.phase is Phase.STOPPING


def test_reject_is_refused_when_busy_and_leaves_no_trace() -> None:
    state, effects = run(RUNNING, Send(message(2, Mode.REJECT)))
    assert state == RUNNING
    assert isinstance(effects[0], Refuse)


def test_an_album_gathers_and_is_one_turn() -> None:
    _state, effects = run(
        SessionState(), *(Send(message(n, group="album")) for n in range(1, 6)), GatherOver("album")
    )
    assert started_with(effects) == [("m1", "m2", "m3", "m4", "m5")]


def test_the_rest_of_an_album_joins_its_own_turn_and_interrupts_nothing() -> None:
    state, _ = run(SessionState(), Send(message(1, group="a")), GatherOver("a"))
    state, _effects = run(state, Send(message(2, Mode.INTERRUPT, group="a"), "t1"))
    assert state.phase is Phase.RUNNING
    assert [m.id for m in state.lane(Lane.STEER)] == ["m2"]


def test_a_stop_while_an_album_gathers_holds_it() -> None:
    state, effects = run(
        SessionState(), Send(message(1, group="a")), Stop(None, False, "u", "s"), GatherOver("a")
    )
    assert started_with(effects) == []
    assert state.held


def test_rollback_hides_the_turn_it_stopped() -> None:
    _, effects = run(
        RUNNING,
        Send(message(2, Mode.ROLLBACK), "t1", landed=True),
        settled("t1", TurnOutcome.STOPPED),
    )
    assert [e.hidden for e in logged(effects) if isinstance(e, TurnSettled)] == [True]


def test_the_end_of_a_background_call_does_not_let_go_of_what_is_held() -> None:
    state, _ = run(
        RUNNING,
        Detached("t1", "c1", IN_BACKGROUND),
        Send(message(2, Mode.QUEUE)),
        Stop("t1", True, "user", "user_stop"),
        settled("t1", TurnOutcome.STOPPED),
    )
    state, effects = run(state, BackgroundOver("c1", FINISHED, message(9)))
    assert state.held
    assert started_with(effects) == []


@pytest.mark.parametrize("begins_turn", [True, False])
def test_the_end_of_a_background_call_begins_a_turn_unless_it_was_stopped(
    begins_turn: bool,
) -> None:
    """Whatever its status says: a tool may finish in spite of a stop."""
    idle, _ = run(
        RUNNING, Detached("t1", "c1", IN_BACKGROUND), settled("t1", TurnOutcome.COMPLETED)
    )
    state, effects = run(idle, BackgroundOver("c1", FINISHED, message(9), begins_turn=begins_turn))
    assert (state.turn, state.held) == (("t2", False) if begins_turn else (None, True))
    assert bool(started_with(effects)) is begins_turn
    assert state.background == ()


def test_the_end_of_a_background_call_that_the_model_knows_is_only_written_down() -> None:
    idle, _ = run(
        RUNNING, Detached("t1", "c1", IN_BACKGROUND), settled("t1", TurnOutcome.COMPLETED)
    )
    state, effects = run(idle, BackgroundOver("c1", FINISHED, None))
    assert logged(effects) == [BackgroundEnded("c1", FINISHED)]
    assert (state.turn, state.waiting, state.background) == (None, (), ())


def test_the_background_alone_begins_so_many_turns_in_a_row_and_then_waits_for_the_user() -> None:
    def news(state: SessionState, number: int) -> SessionState:
        """In this turn the agent begins something that ends when the turn is over."""
        turn, call = state.turn, f"c{number}"
        assert turn is not None
        told = Message(f"bg-{call}", "background", Mode.STEER, (Text("over"),))
        moved, over = Detached(turn, call, IN_BACKGROUND), BackgroundOver(call, FINISHED, told)
        return run(state, moved, settled(turn, TurnOutcome.COMPLETED), over)[0]

    state = RUNNING
    for number in range(UNASKED_TURNS_MAX):
        state = news(state, number)
        assert state.phase is Phase.RUNNING
    rested = news(state, UNASKED_TURNS_MAX)
    assert (rested.turn, rested.held) == (None, True)
    # A word of the user's lets it go on for as long again.
    for command in (Continue(), Send(message(9000))):
        state, _ = run(rested, command)
        assert (state.phase, state.held) == (Phase.RUNNING, False)
        assert news(state, 9001).phase is Phase.RUNNING


def test_a_rollback_restores_before_the_next_turn_and_again_after_a_restart() -> None:
    rollback = Send(message(2, Mode.ROLLBACK), "t1", landed=True)
    ended = Settled("t1", TurnOutcome.STOPPED, note_if_hidden="[It did something.]", has_files=True)
    state, effects = run(RUNNING, rollback, ended)
    assert [each.turn for each in effects if isinstance(each, RestoreFiles)] == ["t1"]
    assert (started_with(effects), state.note) == ([], "")
    assert state.unfinished
    state, effects = run(state, Wake())
    assert [each.turn for each in effects if isinstance(each, RestoreFiles)] == ["t1"]
    state, _ = run(state, Close())
    assert state.restoring == "t1"
    state, effects = run(state, RolledBack("t0", (), "[Not this.]"))
    assert (started_with(effects), state.restoring) == ([], "t1")
    opened = change(state, closing=False)
    state, effects = run(opened, RolledBack("t1", (), "[Put back.]"))
    assert started_with(effects) == [("m2",)]
    said = [event for event in logged(effects) if isinstance(event, UserSaid)]
    assert said == [UserSaid("t2", (Text("[Put back.]"), Text("words 2")))]


def test_a_turn_that_nobody_rolls_back_keeps_its_files() -> None:
    state, effects = run(RUNNING, Settled("t1", TurnOutcome.COMPLETED, has_files=True))
    assert not state.restoring
    assert not any(isinstance(each, RestoreFiles) for each in effects)


def test_closing_starts_nothing_more_and_keeps_what_waits() -> None:
    state, effects = run(
        RUNNING, Send(message(2, Mode.QUEUE)), Close(), settled("t1", TurnOutcome.STOPPED)
    )
    assert started_with(effects) == []
    assert [each.message.id for each in state.waiting] == ["m2"]


def test_draining_stops_nothing_and_starts_nothing_more() -> None:
    state, effects = run(RUNNING, Send(message(2, Mode.QUEUE)), Drain())
    assert (state.phase, state.turn) == (Phase.RUNNING, "t1")
    state, effects = run(state, settled("t1", TurnOutcome.COMPLETED))
    assert started_with(effects) == []
    assert [each.message.id for each in state.waiting] == ["m2"]
    assert state.unfinished


def test_every_rule_leads_only_where_the_table_says() -> None:
    for (phase, command), rule in TABLE.items():
        assert set(rule.to) <= set(Phase)
        if phase is Phase.ENDED:
            assert rule.to == (Phase.ENDED,), command


def test_the_picture_in_the_docs_is_drawn_from_the_table() -> None:
    page = Path(__file__).parents[2] / "docs" / "lifecycles" / "session.md"
    assert mermaid() in page.read_text(), "run `python -m bargein.session.decide` and paste it"


# Any commands in any order


def commands() -> st.SearchStrategy[list[tuple[str, int]]]:
    kinds = [
        *(f"send {mode}" for mode in Mode),
        *("landed interrupt", "landed rollback", "album", "gather over"),
        *(
            "stop",
            "late stop",
            "boundary",
            "settle",
            "settle files",
            "rolled back",
            "pause",
            "resume",
            "continue",
        ),
        *("edit", "move", "withdraw", "detach", "background over", "wake", "passivate"),
    ]
    return st.lists(st.tuples(st.sampled_from(kinds), st.integers(0, 6)), max_size=40)


def command_of(kind: str, number: int, state: SessionState, count: int) -> Command:
    new = count + 1
    any_message = f"m{number}"
    turn = state.turn
    if kind.startswith("send "):
        return Send(message(new, Mode(kind.removeprefix("send "))), turn)
    table: dict[str, Command] = {
        "landed interrupt": Send(message(new, Mode.INTERRUPT), turn, landed=turn is not None),
        "landed rollback": Send(message(new, Mode.ROLLBACK), turn, landed=turn is not None),
        "album": Send(message(new, group=f"g{number % 2}"), turn),
        "gather over": GatherOver(f"g{number % 2}"),
        "stop": Stop(turn, turn is not None, "user", "user_stop"),
        "late stop": Stop("t0", False, "user", "user_stop"),
        "boundary": Boundary(turn or "t0"),
        "settle": settled(turn or "t0"),
        "settle files": Settled(turn or "t0", TurnOutcome.STOPPED, has_files=True),
        "rolled back": RolledBack(state.restoring or "t0", (), "[Files were put back.]"),
        "pause": Pause(),
        "resume": Resume(),
        "continue": Continue(),
        "edit": Edit(any_message, (Text("other words"),), "user"),
        "move": Move(any_message, f"m{number + 1}" if number % 2 else None, "user"),
        "withdraw": Withdraw(any_message, "user"),
        "detach": Detached(turn or "t0", f"c{number}", IN_BACKGROUND),
        "background over": BackgroundOver(f"c{number}", FINISHED, message(1000 + new)),
        "wake": Wake(),
        "passivate": Passivate(),
    }
    return table[kind]


@settings(max_examples=400, deadline=None)
@given(commands())
def test_every_message_is_in_exactly_one_place_whatever_happens(
    history: list[tuple[str, int]],
) -> None:
    state = SessionState()
    accepted: list[str] = []
    taken: list[str] = []
    withdrawn: list[str] = []
    open_turns: list[str] = []
    for count, (kind, number) in enumerate(history):
        command = command_of(kind, number, state, count)
        before, (state, effects) = state, decide(state, command)
        rule = TABLE.get((before.phase, type(command)))
        assert state.phase in (rule.to if rule is not None else (before.phase,))
        for event in logged(list(effects)):
            if isinstance(event, MessageAccepted):
                accepted.append(event.message.id)
            elif isinstance(event, TurnStarted):
                open_turns.append(event.turn)
                taken.extend(event.messages)
            elif isinstance(event, MessagesTaken):
                taken.extend(event.messages)
            elif isinstance(event, MessageWithdrawn):
                withdrawn.append(event.message)
            elif isinstance(event, TurnSettled):
                open_turns.remove(event.turn)
        assert len(open_turns) <= 1
        waiting = [each.message.id for each in state.waiting]
        assert sorted(accepted) == sorted(taken + waiting + withdrawn)
        assert (state.turn is not None) == bool(open_turns)
        assert not (state.restoring and open_turns)
        goes_on = not (state.held or state.gathering or state.restoring)
        if state.phase is Phase.IDLE and goes_on:
            assert not waiting


@pytest.mark.parametrize("phase", [Phase.RUNNING, Phase.PAUSED, Phase.STOPPING])
def test_ending_a_session_ends_it_after_its_turn(phase: Phase) -> None:
    extra: dict[Phase, Command] = {
        Phase.PAUSED: Pause(),
        Phase.STOPPING: Stop("t1", True, "user", "user_stop"),
    }
    state = RUNNING
    if phase in extra:
        state, _ = decide(state, extra[phase])
    state, _ = run(state, End("user"), settled("t1", TurnOutcome.STOPPED))
    assert state.phase is Phase.ENDED
