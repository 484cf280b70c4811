"""`bargein demo`: a one-minute demonstration of barging in, played in this terminal.

The model is scripted, and says so. Everything else is real: the program, the keys (pressed by a
player instead of fingers), the engine, and the processes that start and end. It works in a
temporary folder and keeps no session.
"""

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
from prompt_toolkit.input import PipeInput, create_pipe_input

from bargein.cli.chat.app import Chat
from bargein.cli.demo_script import ANSWERS, FILES, SCENES, Caption, Press, See, Sleep, Step, Type
from bargein.cli.event_loop import run_in_loop
from bargein.errors import UserError
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

    async def _do(self, chat: Chat, step: Step) -> None:
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
