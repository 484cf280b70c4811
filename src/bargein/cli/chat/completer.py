"""Completion while typing: commands after a slash, their arguments, and files after an @."""

from collections.abc import AsyncGenerator, Iterable
from pathlib import Path

from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document

from bargein.cli.chat.commands import COMMANDS, MODES, models_known
from bargein.cli.chat.file_index import matching
from bargein.cli.chat.mentions import mention, mention_begun
from bargein.cli.chat.paint import harmless
from bargein.cli.chat.picking import (
    OF_SESSIONS,
    Pick,
    described,
    fitting,
    pick_of,
    sessions_fitting,
)
from bargein.cli.chat.talk import Talk
from bargein.cli.here import place_here
from bargein.errors import BargeinError

COMPLETIONS_MAX = 50
OF_TURNS = ("rewind", "fork", "diff")


class ChatCompleter(Completer):
    def __init__(self, talk: Talk) -> None:
        self._talk = talk

    async def get_completions_async(
        self, document: Document, complete_event: CompleteEvent
    ) -> AsyncGenerator[Completion, None]:
        pick = pick_of(document.text_before_cursor)
        if pick is not None and pick.command in OF_SESSIONS:
            for each in await self._sessions(pick):
                yield each
            return
        for each in self.get_completions(document, complete_event):
            yield each

    def get_completions(
        self, document: Document, complete_event: CompleteEvent
    ) -> Iterable[Completion]:
        before = document.text_before_cursor
        word = document.get_word_before_cursor(WORD=True)
        mentioned = mention_begun(before)
        pick = pick_of(document.text_before_cursor)
        if mentioned is not None:
            yield from self._files(mentioned)
        elif pick is not None and pick.command == "model":
            yield from self._models(pick)
        elif before.startswith("/") and " " not in before:
            typed = before.removeprefix("/")
            custom = self._talk.custom.known()
            helps = {name: each.help for name, each in custom.items()}
            helps |= {name: command.help for name, command in COMMANDS.items()}
            for name, help_ in helps.items():
                if name.startswith(typed):
                    yield Completion(name, -len(typed), display_meta=help_)
        elif before.startswith("/"):
            for known, meta in self._arguments(before):
                if known.startswith(word) and known != word:
                    yield Completion(known, -len(word), display_meta=meta)

    async def _sessions(self, pick: Pick) -> list[Completion]:
        talk = self._talk
        if talk.engine is None or talk.session is None:
            return []
        try:
            found = await talk.sessions()
        except BargeinError:
            # The command itself will say why.
            return []
        if pick.command == "sessions":
            found = sorted(found, key=lambda each: -each.updated_at)
        others = [each for each in found if each.id != talk.session.id]
        here = place_here(talk.config).workspace
        return [
            Completion(
                each.id,
                -len(pick.words),
                display=harmless(each.title) or each.id,
                display_meta=described(talk.engine, each, here),
            )
            for each in sessions_fitting(pick.words, others)
        ]

    def _models(self, pick: Pick) -> Iterable[Completion]:
        if self._talk.engine is None:
            return
        known = models_known(self._talk)
        for at in fitting(pick.words, known):
            if known[at] != pick.words.strip():
                yield Completion(known[at], -len(pick.words))

    def _files(self, begun: str) -> Iterable[Completion]:
        typed = begun.removeprefix('"')
        inside = _in_folder(typed)
        everywhere = matching(typed, self._talk.files.known(), COMPLETIONS_MAX)
        for path in dict.fromkeys([*inside, *everywhere]):
            yield Completion(mention(path), -len(begun), display=harmless(path))

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
        if name in OF_TURNS and place == 1:
            turns = reversed(talk.activity.picture.turns.values())
            return [(each.id, " ".join(talk.activity.words_of(each).split())) for each in turns]
        if name == "output" and place == 1:
            calls = reversed(talk.activity.picture.calls.values())
            return [(each.id, harmless(str(each))) for each in calls if each.status is not None]
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


def _in_folder(typed: str) -> list[str]:
    """The files of the folder that is being named, by the beginnings of their names."""
    folder, slash, start = typed.rpartition("/")
    named = f"{folder}{slash}"
    try:
        found = [e for e in sorted(Path(named or ".").iterdir()) if e.name.startswith(start)]
        return [f"{named}{e.name}{'/' if e.is_dir() else ''}" for e in found[:COMPLETIONS_MAX]]
    except OSError:
        return []
