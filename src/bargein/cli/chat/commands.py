"""The slash commands, and what completes while typing."""

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document

from bargein.cli.receipts import in_words
from bargein.contracts.message import Mode
from bargein.errors import UserError
from bargein.session.session import Session

if TYPE_CHECKING:
    from bargein.cli.chat.app import Chat

COMPLETIONS_MAX = 50


@dataclass(frozen=True, slots=True)
class Command:
    help: str
    run: "Callable[[Chat, Session, str], Awaitable[None]]"


async def run_command(chat: "Chat", text: str) -> None:
    name, _, rest = text.removeprefix("/").partition(" ")
    command = COMMANDS.get(name)
    if command is None:
        raise UserError(f"no such command: /{name}; /help lists them")
    if chat.session is None:
        raise UserError("still starting; try again in a moment")
    await command.run(chat, chat.session, rest.strip())


async def _stop(chat: "Chat", session: Session, rest: str) -> None:
    if not chat.busy:
        raise UserError("nothing is running")
    chat.stop()


async def _queue(chat: "Chat", session: Session, rest: str) -> None:
    await chat.send(rest, Mode.QUEUE)


async def _steer(chat: "Chat", session: Session, rest: str) -> None:
    await chat.send(rest, Mode.STEER)


async def _redirect(chat: "Chat", session: Session, rest: str) -> None:
    await chat.send(rest, Mode.INTERRUPT)


async def _inbox(chat: "Chat", session: Session, rest: str) -> None:
    action, _, words = rest.partition(" ")
    if action == "drop":
        await session.withdraw(words.strip())
        return
    if action == "edit":
        message, _, new = words.strip().partition(" ")
        await session.edit(message, new)
        return
    if action not in ("", "list"):
        raise UserError(f"/inbox {action}: say /inbox, /inbox drop ID or /inbox edit ID WORDS")
    items = await session.inbox()
    for item in items:
        held = ", held" if item.held else ""
        chat.view.note("note", f"  {item.message.id} ({item.lane}{held}): {item.message.text}")
    if not items:
        chat.view.note("dim", "nothing waits")


async def _pause(chat: "Chat", session: Session, rest: str) -> None:
    await session.pause()


async def _continue(chat: "Chat", session: Session, rest: str) -> None:
    state = chat.state
    if state is not None and state.phase == "paused":
        await session.resume()
    else:
        await session.continue_()


async def _background(chat: "Chat", session: Session, rest: str) -> None:
    await detach_newest(chat)


async def _tasks(chat: "Chat", session: Session, rest: str) -> None:
    action, _, call = rest.partition(" ")
    if action == "stop":
        receipt = await session.interrupt(scope="call", target=call.strip())
        told = in_words(receipt) if receipt.status == "stopped" else f"{call}: it has ended"
        chat.view.note("note", told)
        return
    state = chat.state
    running = [f"  {call_id}: {tool.name}" for call_id, tool in chat.view.tools.items()]
    running += [f"  {each}: in the background" for each in (state.background if state else ())]
    chat.view.note("note", "\n".join(running) or "nothing is running")


async def _status(chat: "Chat", session: Session, rest: str) -> None:
    model = chat.engine.model_name if chat.engine is not None else ""
    chat.view.note("note", chat.view.status(chat.state, model, chat.session_id).strip())


async def _receipt(chat: "Chat", session: Session, rest: str) -> None:
    receipt = chat.view.receipt
    if receipt is None:
        raise UserError("nothing has been stopped yet")
    lines = [in_words(receipt)]
    for step in receipt.steps:
        lines.append(f"  {step.kind} {step.name}: {step.status} after {step.elapsed_ms:.0f} ms")
        ended = step.detail.processes if step.detail is not None else ()
        lines += [f"    pid {each.pid} {each.command}: {each.ended_by}" for each in ended]
    chat.view.note("note", "\n".join(lines))


async def _answer(chat: "Chat", session: Session, rest: str) -> None:
    if not chat.view.questions:
        raise UserError("no question is open")
    question = next(iter(chat.view.questions))
    await session.answer(question, rest)
    chat.hint = ""


async def _export(chat: "Chat", session: Session, rest: str) -> None:
    from bargein.cli.export import as_markdown

    name = rest or f"{chat.session_id}.md"
    page = as_markdown(await session.events())
    try:
        async with await anyio.open_file(name, "x") as file:
            await file.write(page)
    except OSError as error:
        raise UserError(f"{name}: {error.strerror}; name another file: /export NAME") from error
    chat.view.note("note", f"written to {name}")


async def _help(chat: "Chat", session: Session, rest: str) -> None:
    width = max(len(name) for name in COMMANDS)
    lines = [f"  /{name:<{width}}  {command.help}" for name, command in COMMANDS.items()]
    keys = (
        "  Enter steers · Tab queues · Esc stops · Ctrl-B background · Alt-Up edits · Ctrl-D leaves"
    )
    chat.view.note("note", "\n".join([*lines, keys]))


async def _exit(chat: "Chat", session: Session, rest: str) -> None:
    chat.leave()


async def detach_newest(chat: "Chat") -> None:
    """Move the call that began last to the background."""
    if chat.session is None or not chat.view.tools:
        raise UserError("no call is running")
    await chat.session.detach(list(chat.view.tools)[-1])


async def edit_last(chat: "Chat") -> None:
    """Take the last waiting message back into the line."""
    if chat.session is None:
        return
    items = await chat.session.inbox()
    if not items:
        raise UserError("nothing waits that could be edited")
    await chat.session.withdraw(items[-1].message.id)
    chat.put_back(items[-1].message.text)


COMMANDS: dict[str, Command] = {
    "stop": Command("stop the answer; what waits is held", _stop),
    "redirect": Command("stop the answer and say this instead", _redirect),
    "steer": Command("join the running turn with this", _steer),
    "queue": Command("a turn of its own, later", _queue),
    "inbox": Command("what waits; /inbox drop ID, /inbox edit ID WORDS", _inbox),
    "pause": Command("wait at the next step", _pause),
    "continue": Command("go on: after a pause, or with what is held", _continue),
    "bg": Command("move the running call to the background", _background),
    "tasks": Command("what runs; /tasks stop ID", _tasks),
    "answer": Command("answer the open question", _answer),
    "status": Command("model, state, what waits", _status),
    "receipt": Command("the last stop, in full", _receipt),
    "export": Command("write the session as Markdown; /export FILE", _export),
    "help": Command("this", _help),
    "exit": Command("leave", _exit),
}


class ChatCompleter(Completer):
    """Commands after a slash at the start, files after an @."""

    def __init__(self, chat: "Chat") -> None:
        self._chat = chat

    def get_completions(
        self, document: Document, complete_event: CompleteEvent
    ) -> Iterable[Completion]:
        before = document.text_before_cursor
        if before.startswith("/") and " " not in before:
            typed = before.removeprefix("/")
            for name, command in COMMANDS.items():
                if name.startswith(typed):
                    yield Completion(name, -len(typed), display_meta=command.help)
            return
        word = document.get_word_before_cursor(WORD=True)
        if word.startswith("@"):
            yield from _files(word.removeprefix("@"))


def _files(typed: str) -> Iterable[Completion]:
    folder, _, start = typed.rpartition("/")
    try:
        found = (e for e in sorted(Path(folder or ".").iterdir()) if e.name.startswith(start))
        for each in islice(found, COMPLETIONS_MAX):
            yield Completion(each.name + ("/" if each.is_dir() else ""), -len(start))
    except OSError:
        return
