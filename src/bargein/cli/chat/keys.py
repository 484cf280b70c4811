"""What each key does: the actions, when each is possible, and the keys bound to it.

docs/terminal.md describes this in words; `bargein.runtime.settings` has the keys.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from prompt_toolkit.application.current import get_app
from prompt_toolkit.filters import Always, Condition, Filter, has_completions, is_searching
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.key_binding.bindings.search import abort_search, accept_search
from prompt_toolkit.keys import Keys

from bargein.cli.chat.commands import COMMANDS, cycle_mode, detach_newest, edit_last
from bargein.cli.chat.picking import pick_of
from bargein.contracts.message import Mode
from bargein.runtime.key_names import key_sequence

if TYPE_CHECKING:
    from bargein.cli.chat.app import Chat

Rows = dict[str, list[tuple[Filter, Callable[[], object]]]]

# While searching the history (Ctrl-R), these keys act on the search.
WHILE_SEARCHING = {"send": accept_search, "stop": accept_search, "interrupt": abort_search}


def bindings(chat: "Chat") -> KeyBindings:
    keys = KeyBindings()
    rows = actions(chat)
    for action, names in chat.talk.config.keys().items():
        for name in names:
            for when, act in rows[action]:
                while_writing = when & ~is_searching
                keys.add(*key_sequence(name), filter=while_writing)(lambda _, act=act: _void(act()))
            if action in WHILE_SEARCHING:
                keys.add(*key_sequence(name))(WHILE_SEARCHING[action])
    # A signal, not a key: it interrupts whatever the keys are.
    keys.add("<sigint>")(lambda _: chat.ctrl_c())

    @keys.add(Keys.BracketedPaste, filter=~is_searching)
    def paste(event: KeyPressEvent) -> None:
        chat.paste(event.data)

    behind_paste = Condition(lambda: bool(chat.pasted_before_cursor()))

    @keys.add("backspace", filter=~is_searching & behind_paste)
    def unpaste(event: KeyPressEvent) -> None:
        chat.buffer.delete_before_cursor(len(chat.pasted_before_cursor()))

    return keys


def actions(chat: "Chat") -> Rows:
    """Maps each action of `bargein.runtime.settings.ACTIONS` to what it does, and when."""
    talk = chat.talk
    busy = Condition(lambda: talk.busy)
    empty = Condition(lambda: not chat.buffer.text)
    runs_call = Condition(lambda: bool(talk.activity.calls))
    always = Always()
    return {
        "send": [(always, lambda: _enter(chat))],
        "newline": [(always, lambda: chat.buffer.insert_text("\n"))],
        "queue": [(~has_completions, lambda: _tab(chat)), (has_completions, chat.complete_next)],
        "stop": [
            (has_completions, chat.buffer.cancel_completion),
            (busy & ~has_completions, talk.stop),
        ],
        "interrupt": [(always, chat.ctrl_c)],
        "expand": [(always, chat.expand)],
        "leave": [(empty, chat.leave)],
        "edit_last": [(always, lambda: chat.spawn(lambda: edit_last(talk)))],
        "background": [(runs_call, lambda: chat.spawn(lambda: detach_newest(talk)))],
        "editor": [(always, chat.edit)],
        "mode": [(~has_completions, lambda: chat.spawn(lambda: cycle_mode(talk)))],
        "suspend": [(always, lambda: get_app().suspend_to_background())],
    }


def _enter(chat: "Chat") -> None:
    """Sends the line. Takes the highlighted completion first; then a command that works alone runs,
    and one that needs arguments waits for them."""
    buffer = chat.buffer
    state = buffer.complete_state
    if state is not None and state.current_completion is not None:
        buffer.apply_completion(state.current_completion)
        command = COMMANDS.get(buffer.text.removeprefix("/")) if buffer.text[:1] == "/" else None
        if command is None and pick_of(buffer.text) is None:
            return
        if command is not None and command.needs_words:
            buffer.insert_text(" ")
            return
    chat.submit(chat.talk.enter_mode)


def _tab(chat: "Chat") -> None:
    text = chat.buffer.text
    state = chat.talk.state
    running = state is not None and state.busy
    if running and text.strip() and not text.startswith(("/", "!")):
        chat.submit(Mode.QUEUE)
    else:
        chat.buffer.start_completion(select_first=True)


def _void(_: object) -> None:
    """Discards a result: prompt_toolkit would await what a key's handler returns."""
