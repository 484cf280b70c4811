"""The script of `bargein demo`: the model's lines and the user's keys. Pure data."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bargein.cli.chat.talk import Talk
from bargein.models import script as model


@dataclass(frozen=True, slots=True)
class Caption:
    """Shows an explanation to the viewer."""

    words: str


@dataclass(frozen=True, slots=True)
class Type:
    words: str


@dataclass(frozen=True, slots=True)
class Press:
    key: str


@dataclass(frozen=True, slots=True)
class Sleep:
    seconds: float


@dataclass(frozen=True, slots=True)
class See:
    """Waits until something holds."""

    holds: Callable[[Talk], bool]


Step = Caption | Type | Press | Sleep | See

FILES = {
    "run-tests": 'for n in $(seq 1 400); do echo "test_$n ... ok"; sleep 0.15; done',
    "build": "for n in 1 2 3 4 5 6 7 8 9; do echo compiling part $n of 9; sleep 0.7; done",
    # Leaves its group and session, forks twice, and ignores every signal that can be ignored.
    "server": "setsid sh -c 'trap \"\" INT TERM HUP; (while :; do sleep 1; done) & wait' &\n"
    "sleep 0.3; echo server up: it has left its group and ignores SIGTERM; wait",
}
ESSAY = (
    "An event loop is, at heart, a queue and a promise. The queue holds what wants to happen; the "
    "promise is that everything in it happens, one thing at a time, in order. To see why that is "
    "enough, begin with the year in which select was invented, and with the machines of that time, "
    "which had one processor and many terminals, each of them waiting, and with their operators, "
    "who had discovered that waiting is cheap as long as nobody does it twice."
)


def _call(name: str, **arguments: object) -> model.Call:
    return model.Call(name, arguments)


ANSWERS: Sequence[model.Answer] = (
    model.Answer([model.Say("Running the tests.", 0.03), _call("terminal", command="./run-tests")]),
    model.Answer([model.Say(ESSAY, 0.09)]),
    model.Answer([model.Say("It runs callbacks from a queue, one at a time.", 0.04)]),
    model.Answer([model.Say("Building it.", 0.03), _call("terminal", command="./build")]),
    model.Answer(
        [model.Say("Built. As you said, I will **not** strip the symbols.", 0.04)],
    ),
    model.Answer([model.Say("The changelog has a line for it now.", 0.04)]),
    model.Answer([model.Say("Starting the server.", 0.03), _call("terminal", command="./server")]),
)


def _runs(words: str) -> Callable[[Talk], bool]:
    return lambda talk: any(words in str(call.output) for call in talk.activity.calls.values())


def _idle(talk: Talk) -> bool:
    state = talk.state
    return state is not None and not state.busy and not state.waiting


def _settled(talk: Talk) -> bool:
    return _idle(talk) and talk.activity.turn_began_at is None


SCENES: Sequence[Sequence[Step]] = (
    [
        Caption("bargein demo: the model is scripted, the program and the processes are real."),
        Caption(
            "1. Stop. A long command runs; Esc ends it, and the receipt says what became of it."
        ),
        Type("run the tests"),
        Press("enter"),
        See(_runs("test_9")),
        Press("escape"),
        See(_settled),
    ],
    [
        Caption("2. Redirect. Words that replace the answer while it is being given."),
        Type("how does an event loop work?"),
        Press("enter"),
        Sleep(2.5),
        Type("/redirect in one sentence"),
        Press("enter"),
        See(_settled),
    ],
    [
        Caption(
            "3. Steer with Enter: it joins at the next step. Queue with Tab: a turn of its own."
        ),
        Type("build it"),
        Press("enter"),
        See(_runs("part 1")),
        Type("keep the symbols"),
        Press("enter"),
        Type("then add a line to the changelog"),
        Press("tab"),
        See(_settled),
    ],
    [
        Caption(
            "4. A process that escapes: setsid, two forks, deaf to SIGINT, SIGTERM and SIGHUP."
        ),
        Type("start the server"),
        Press("enter"),
        See(_runs("server up")),
        Press("escape"),
        See(_settled),
        Type("/receipt"),
        Press("enter"),
        Sleep(3.0),
    ],
    [
        Caption("Nothing is left of it. That was a script; `bargein` is the real thing."),
        Sleep(2.0),
    ],
)
