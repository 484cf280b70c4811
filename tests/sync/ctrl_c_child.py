"""A program without an event loop, which waits for an answer that never ends.

`python -m tests.sync.ctrl_c_child KIND` prints "waiting" when it waits; the test reads the lines
after that. With KIND "plain" it does not catch the Ctrl-C, else it goes on after it. With "events"
it iterates `Session.stream`, else it waits for `Sent.result`; with "queued" for that of a message
behind the one that is being answered.
"""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

from bargein.cancel import Token
from bargein.events import TextDelta
from bargein.models.script import Call, Say, Wait
from bargein.models.scripted import ScriptedModel
from bargein.models.settings import ModelSettings
from bargein.runtime.agent import Agent
from bargein.runtime.config import Config
from bargein.sync import Engine, Session


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def work(token: Token) -> str:
    """Work in a thread until told to stop."""
    working.set()
    token.sleep(3600)
    return ""


working = threading.Event()


def say_when_waiting(waits_in: str) -> None:
    """A Ctrl-C that comes before the wait has begun is raised, but stops no turn."""
    while {waits_in, "wait"} - set(functions_of_main_thread()):
        time.sleep(0.001)
    say("waiting")


def functions_of_main_thread() -> list[str]:
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    names = []
    while frame is not None:
        names.append(frame.f_code.co_name)
        frame = frame.f_back
    return names


def read_events(session: Session) -> None:
    heard = threading.Event()

    def say_in_the_middle() -> None:
        heard.wait()
        say_when_waiting("_next")

    threading.Thread(target=say_in_the_middle).start()
    try:
        for event in session.stream("Count"):
            if isinstance(event, TextDelta):
                say(event.text)
                heard.set()
    except KeyboardInterrupt:
        say(str(session.state().phase))


async def _open(model: ScriptedModel) -> None:
    model.gate("for ever").open()


def main(kind: str) -> None:
    if kind == "tool":
        model = ScriptedModel([[Say("I work."), Call("work")], [Say("After all")]])
    else:
        model = ScriptedModel([[Say("One "), Wait("for ever")], [Say("After all")]])
    agent = Agent(model=model, tools=[work])
    config = Config(Path("unused"), ModelSettings(), {})
    began = 0.0
    with Engine(agent, store="memory", config=config) as engine:
        session = engine.session("alice")
        if kind == "events":
            read_events(session)
            say(session.send("And?").result().text)
            return
        sent = session.send("Count")
        if kind == "tool":
            working.wait()
        else:
            engine.call(model.gate("for ever").reached)
        queued = session.send("And?", mode="queue") if kind == "queued" else None
        threading.Thread(target=say_when_waiting, args=["_wait_for"]).start()
        try:
            (queued or sent).result()
        except KeyboardInterrupt:
            if kind == "plain":
                raise
            if queued is not None:
                say(str(session.state().phase))
                engine.call(_open, model)
                say(sent.result().text)
                say(queued.result().text)
                return
            result = engine.call(sent._inner.result)
            assert result.receipt is not None
            say(f"{result.outcome} {result.text!r} {result.receipt.elapsed_ms:.3f}")
            say(session.send("And?").result().text)
            began = time.monotonic()
    say(f"closed in {time.monotonic() - began:.3f}")


if __name__ == "__main__":
    main(sys.argv[1])
