"""What each key does, as one table. docs/terminal.md is this table in words."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from prompt_toolkit.application.current import get_app
from prompt_toolkit.filters import Always, Condition, Filter, has_completions
from prompt_toolkit.key_binding import KeyBindings

from bargein.cli.chat.commands import detach_newest, edit_last
from bargein.contracts.message import Mode

if TYPE_CHECKING:
    from bargein.cli.chat.app import Chat

Row = tuple[tuple[str, ...], Filter, Callable[[], object]]


def bindings(chat: "Chat") -> KeyBindings:
    keys = KeyBindings()
    for sequence, when, action in table(chat):
        keys.add(*sequence, filter=when)(lambda event, action=action: _void(action()))
    return keys


def table(chat: "Chat") -> list[Row]:
    busy = Condition(lambda: chat.busy)
    empty = Condition(lambda: not chat.buffer.text)
    runs_call = Condition(lambda: bool(chat.view.tools))
    always = Always()
    return [
        (("enter",), always, lambda: _enter(chat)),
        (("escape", "enter"), always, lambda: chat.buffer.insert_text("\n")),
        (("c-j",), always, lambda: chat.buffer.insert_text("\n")),
        (("tab",), ~has_completions, lambda: _tab(chat)),
        (("escape",), has_completions, chat.buffer.cancel_completion),
        (("escape",), busy & ~has_completions, chat.stop),
        (("c-c",), always, chat.ctrl_c),
        (("<sigint>",), always, chat.ctrl_c),
        (("c-d",), empty, chat.leave),
        (("escape", "up"), always, lambda: chat.spawn(lambda: edit_last(chat))),
        (("c-b",), runs_call, lambda: chat.spawn(lambda: detach_newest(chat))),
        (("c-g",), always, chat.buffer.open_in_editor),
        (("c-z",), always, lambda: get_app().suspend_to_background()),
    ]


def _enter(chat: "Chat") -> None:
    state = chat.buffer.complete_state
    if state is not None and state.current_completion is not None:
        chat.buffer.apply_completion(state.current_completion)
    else:
        chat.submit(Mode.STEER)


def _tab(chat: "Chat") -> None:
    text = chat.buffer.text
    if chat.busy and text.strip() and not text.startswith("/"):
        chat.submit(Mode.QUEUE)
    else:
        chat.buffer.start_completion(select_first=True)


def _void(_: object) -> None:
    """A key's handler gives nothing back: prompt_toolkit would wait for it."""
