"""Completion while typing: commands after a slash, their arguments, and files after an @."""

from collections.abc import Iterable
from itertools import islice
from pathlib import Path

from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document

from bargein.cli.chat.commands import COMMANDS, MODES
from bargein.cli.chat.talk import Talk

COMPLETIONS_MAX = 50


class ChatCompleter(Completer):
    def __init__(self, talk: Talk) -> None:
        self._talk = talk

    def get_completions(
        self, document: Document, complete_event: CompleteEvent
    ) -> Iterable[Completion]:
        before = document.text_before_cursor
        word = document.get_word_before_cursor(WORD=True)
        if word.startswith("@"):
            yield from _files(word.removeprefix("@"))
        elif before.startswith("/") and " " not in before:
            typed = before.removeprefix("/")
            for name, command in COMMANDS.items():
                if name.startswith(typed):
                    yield Completion(name, -len(typed), display_meta=command.help)
        elif before.startswith("/"):
            for known, meta in self._arguments(before):
                if known.startswith(word) and known != word:
                    yield Completion(known, -len(word), display_meta=meta)

    def _arguments(self, before: str) -> Iterable[tuple[str, str]]:
        """Returns what may come next in a command line."""
        name, *words = before.removeprefix("/").split(" ")
        talk = self._talk
        waiting = talk.state.waiting if talk.state is not None else ()
        tasks = {name: str(call) for name, call in talk.activity.calls.items()}
        tasks |= {name: str(call) for name, call in talk.activity.background.items()}
        tasks |= {child.name: child.task for child in talk.activity.children.values()}
        place = len(words)
        if name == "inbox" and place == 1:
            return [("drop", "take a message back"), ("edit", "change its words")]
        if name == "inbox" and place == 2:
            return [(each.message.id, each.message.text[:40]) for each in waiting]
        if name == "mode" and place == 1:
            return [(str(mode), words) for mode, words in MODES.items()]
        if name == "grants" and place == 1:
            return [("revoke", "ask about it again")]
        if name == "stop" and place == 1:
            return [("all", "the background too")]
        if name == "tasks" and place == 1:
            return [("stop", "stop one")]
        if name == "tasks" and place == 2:
            return list(tasks.items())
        if name == "answer" and place == 1 and talk.asked is not None:
            return [(choice, "") for choice in talk.asked[1].question.choices]
        return []


def _files(typed: str) -> Iterable[Completion]:
    folder, _, start = typed.rpartition("/")
    try:
        found = (e for e in sorted(Path(folder or ".").iterdir()) if e.name.startswith(start))
        for each in islice(found, COMPLETIONS_MAX):
            yield Completion(each.name + ("/" if each.is_dir() else ""), -len(start))
    except OSError:
        return
