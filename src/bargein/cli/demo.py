"""`bargein demo`: a one-minute demonstration of barging in, played in this terminal.

The model is scripted, and says so. Everything else is real: the program, the keys (pressed by a
player instead of fingers), the engine, and the processes that start and end. It works in a
temporary folder and keeps no session.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
from prompt_toolkit.input import PipeInput, create_pipe_input

from bargein.cli.chat.app import Chat
from bargein.cli.chat.talk import Talk
from bargein.cli.event_loop import run_in_loop
from bargein.errors import UserError
from bargein.models import script as model
from bargein.models.scripted import ScriptedModel
from bargein.runtime.agent import Agent
from bargein.runtime.config import Config, Effective
from bargein.runtime.engine import Engine
from bargein.runtime.key_names import key_sequence, shown

KEY_S = 0.045
READ_S = 0.035
SEE_S_MAX = 20.0
SENT = {"escape": "\x1b", "enter": "\r", "tab": "\t"}
FAST = 0.15


def main(given: argparse.Namespace, config: Config) -> int:
    if not sys.stdout.isatty():
        raise UserError("the demo needs a terminal; standard output is not one")
    return run_in_loop(_play, given, config)


async def _play(given: argparse.Namespace, config: Config) -> int:
    with TemporaryDirectory(prefix="bargein-demo-") as folder, create_pipe_input() as keys:
        # Uses the default keys, whatever is configured.
        shown_as = {key: each for key, each in config.effective.items() if "keys." not in key}
        shown_as["home"] = Effective(folder)
        own = replace(config, home=Path(folder) / "home", effective=shown_as)
        player = Player(own, Path(folder), keys, pace=FAST if given.fast else 1.0)
        return await player.run()


@dataclass
class Player:
    """Presses the keys. `pace` scales the pauses for reading."""

    config: Config
    folder: Path
    keys: PipeInput
    pace: float

    async def run(self) -> int:
        chat = Chat(self.config, open_engine=self._open_engine, keyboard=self.keys)
        async with anyio.create_task_group() as group:
            group.start_soon(self._play, chat)
            code = await chat.run()
            group.cancel_scope.cancel()
        return code

    def _open_engine(self, config: Config, on_notice: Callable[[str], object]) -> Engine:
        for name, body in FILES.items():
            (self.folder / name).write_text(f"#!/bin/sh\n{body}\n")
            (self.folder / name).chmod(0o755)
        agent = Agent(model=ScriptedModel(ANSWERS, name="scripted"), workspace=self.folder)
        return Engine(agent, store="memory", config=config, on_notice=on_notice)

    async def _play(self, chat: Chat) -> None:
        await chat.talk.ready.wait()
        for scene in SCENES:
            for step in scene:
                await self._do(chat, step)
        chat.leave()

    async def _do(self, chat: Chat, step: "Step") -> None:
        match step:
            case Caption(words):
                chat.view.note("ask", words, kind="caption")
                await anyio.sleep(self.pace * READ_S * len(words))
            case Type(words):
                for letter in words:
                    self.keys.send_text(letter)
                    await anyio.sleep(self.pace * KEY_S)
            case Press(key):
                chat.notice(f"[{shown(key)}]")
                self.keys.send_text(SENT.get(key) or chr(ord(key_sequence(key)[0][-1]) - 96))
                await anyio.sleep(self.pace * 0.3)
            case Sleep(seconds):
                await anyio.sleep(self.pace * seconds)
            case See(holds):
                with anyio.move_on_after(SEE_S_MAX):
                    await _until(partial(holds, chat.talk))
                await anyio.sleep(self.pace * 0.8)


async def _until(holds: Callable[[], bool]) -> None:
    # A screen has no events to wait for.
    while not holds():  # noqa: ASYNC110
        await anyio.sleep(0.02)


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
