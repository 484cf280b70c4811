"""Wrong types given to the public API are refused where they are given, in words that name the
argument, the value and what would be right. What is refused leaves no trace."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from bargein import Agent, Engine
from bargein import sync as bargein_sync
from bargein.cancel import Cause
from bargein.contracts.message import Attachment
from bargein.contracts.model import Image, Text, UserMessage
from bargein.errors import UserError
from bargein.models.script import Say
from bargein.models.scripted import ScriptedModel

THREE: Any = 3
WORD: Any = "x"


def model() -> ScriptedModel:
    return ScriptedModel([[Say("fine")]])


def an_engine() -> Engine:
    return Engine(Agent(model=model()), store="memory")


CALLS: list[tuple[Callable[[Any], Awaitable[object]], str]] = [
    (lambda s: s.send(3), "content is 3, of type int; give text, or a list of Text and Image"),
    (lambda s: s.send(None), "content is None"),
    (lambda s: s.send(b"hi"), "content is b'hi'"),
    (lambda s: s.send({"text": "hi"}), "content is {'text': 'hi'}"),
    (lambda s: s.send([3]), r"content\[0\] is 3, of type int; give text, or a list of Text"),
    (lambda s: s.send(["hi"]), r"content\[0\] is 'hi'"),
    (lambda s: s.send([Text(THREE)]), r"content\[0\].text is 3, of type int; give text"),
    (lambda s: s.send([Image("image/png", WORD)]), r"content\[0\].data is 'x'.*give bytes"),
    (lambda s: s.send("x", sender=3), "sender is 3, of type int; give text"),
    (lambda s: s.send("x", client_id=3), "client_id is 3, of type int; give text or None"),
    (lambda s: s.send("x", expected_turn=3), "expected_turn is 3"),
    (lambda s: s.send("x", group=3), "group is 3"),
    (lambda s: s.send("x", attachments=3), "attachments is 3.*give a list of Attachment"),
    (lambda s: s.send("x", attachments=["y"]), r"attachments\[0\] is 'y'"),
    (lambda s: s.send("x", attachments=[Attachment("a", "b", THREE)]), r"\[0\].data is 3"),
    (lambda s: s.interrupt(target=3), "target is 3"),
    (lambda s: s.interrupt(expected_turn=3), "expected_turn is 3"),
    (lambda s: s.interrupt(by=3), "by is 3"),
    (lambda s: s.interrupt(cause="because"), "cause is 'because'.*give a Cause"),
    (lambda s: s.interrupt(cause=Cause.REDIRECT), "has a message: use send"),
    (lambda s: s.answer(3, "yes"), "question is 3"),
    (lambda s: s.answer("q1", 3), "text is 3"),
    (lambda s: s.answer("q1", "yes", by=3), "by is 3"),
    (lambda s: s.dismiss(3), "question is 3"),
    (lambda s: s.edit(3, "x"), "message is 3"),
    (lambda s: s.edit("m1", 3), "content is 3"),
    (lambda s: s.move(3), "message is 3"),
    (lambda s: s.move("m1", before=3), "before is 3"),
    (lambda s: s.withdraw(3), "message is 3"),
    (lambda s: s.detach(3), "call_id is 3"),
    (lambda s: s.rename(3), "title is 3"),
    (lambda s: s.undo(by=3), "by is 3"),
    (lambda s: s.compact(by=3), "by is 3"),
    (lambda s: s.end(by=3), "by is 3"),
    (lambda s: s.events(after="x"), "after is 'x', of type str; give a whole number"),
    (lambda s: s.begin_with(3), "history is 3.*give a list of UserMessage"),
    (lambda s: s.begin_with([3]), r"history\[0\] is 3"),
    (lambda s: s.begin_with([UserMessage((Text(THREE),))]), "history cannot be stored"),
    (lambda s: s.watch(after="x").__anext__(), "after is 'x'"),
]


@pytest.mark.anyio
async def test_a_session_refuses_what_is_of_the_wrong_type_and_goes_on() -> None:
    async with an_engine() as engine:
        session = await engine.session("alice")
        for call, told in CALLS:
            with pytest.raises(TypeError, match=told):
                await call(session)
        assert await session.events() == []
        sent = await session.send("Hello")
        assert (await sent.result()).text == "fine"


@pytest.mark.anyio
async def test_half_a_character_is_refused_before_it_reaches_the_store() -> None:
    half = "a\ud800b"
    async with an_engine() as engine:
        session = await engine.session("alice")
        for call in (
            lambda: session.send(half),
            lambda: session.send([Text(half)]),
            lambda: session.send("x", sender=half),
            lambda: session.rename(half),
            lambda: session.interrupt(by=half),
            lambda: engine.session(half),
        ):
            with pytest.raises(ValueError, match=r"has half a character, '.ud800', at 1"):
                await call()
        sent = await session.send("ganze Wörter")
        assert (await sent.result()).text == "fine"


@pytest.mark.anyio
async def test_a_word_that_is_none_of_ours_is_told_with_those_that_are() -> None:
    async with an_engine() as engine:
        session = await engine.session("alice")
        words: list[Any] = ["foo", 3, None]
        for mode in words:
            with pytest.raises(UserError, match=f"no mode {mode!r}; it is one of steer, interrupt"):
                await session.send("x", mode=mode)
        for scope in words:
            with pytest.raises(UserError, match=f"no scope {scope!r}; it is one of call, child"):
                await session.interrupt(scope=scope)


@pytest.mark.anyio
@pytest.mark.parametrize("name", [5, None, b"x", ["a"]])
async def test_the_name_of_a_session_is_text(name: Any) -> None:
    async with an_engine() as engine:
        with pytest.raises(TypeError, match=r"session_id is .*; give text"):
            await engine.session(name)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"tools": 3}, "tools is 3, of type int; give a list of functions"),
        ({"tools": None}, "tools is None"),
        ({"tools": "terminal"}, "tools is 'terminal'"),
        ({"tools": [3]}, r"tools is \[3\]"),
        ({"model": 3}, 'model is 3.*give a name such as "openai'),
        ({"workspace": 3}, "workspace is 3.*give a path"),
        ({"instructions": 3}, "instructions is 3"),
        ({"policy": 3}, "policy is 3"),
        ({"budget": 3}, "budget is 3.*give a Budget"),
        ({"session_budget": None}, "session_budget is None"),
        ({"sub_agents": ["a"]}, r"sub_agents is \['a'\]"),
        ({"sub_agents": {"a": 3}}, r"sub_agents\['a'\] is 3"),
        ({"sub_models": "openai:m"}, "sub_models is 'openai:m'"),
    ],
)
def test_an_agent_says_which_argument_is_wrong(given: dict[str, Any], told: str) -> None:
    with pytest.raises(TypeError, match=told):
        Agent(**given)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"home": 3}, "home is 3.*give a path"),
        ({"store": 3}, "store is 3.*give an address"),
        ({"limits": 3}, "limits is 3"),
        ({"on_notice": 3}, "on_notice is 3.*give a function"),
    ],
)
def test_an_engine_says_which_argument_is_wrong(given: dict[str, Any], told: str) -> None:
    with pytest.raises(TypeError, match=told):
        Engine(Agent(model=model()), **given)


def test_without_await_it_is_the_same() -> None:
    with bargein_sync.Engine(Agent(model=model()), store="memory") as engine:
        wrong: Any = 3
        with pytest.raises(TypeError, match="session_id is 3"):
            engine.session(wrong)
        session = engine.session("alice")
        with pytest.raises(TypeError, match="content is 3"):
            session.send(wrong)
        with pytest.raises(UserError, match="no scope 3"):
            session.interrupt(scope=wrong)
        with pytest.raises(TypeError, match="text is 3"):
            session.answer("q", wrong)
        assert session.send("Hello").result().text == "fine"
