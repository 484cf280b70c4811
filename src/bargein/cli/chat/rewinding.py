"""`/undo`, `/redo`, `/rewind` and `/diff`: what a turn did to files, shown and taken back."""

from bargein.cli.chat.paint import harmless
from bargein.cli.chat.restored import files_in_words
from bargein.cli.chat.talk import Talk
from bargein.contracts.checkpoint import FilesUndone
from bargein.contracts.event import TurnHidden, TurnSettled
from bargein.errors import UserError
from bargein.session.undo import Undone, words_of
from bargein.session.undoing_calls import UndoOffer

FILES_NOT_RESTORED = "files are not restored: what it did stays done"
LINES_MAX = 400


async def undo(talk: Talk, rest: str) -> None:
    _, session = talk.opened()
    if rest == "--preview":
        preview = await session.preview_undo()
        talk.face.tell("note", f"/undo would take back: {_words(preview)}")
        _tell_files(talk, preview.files)
        _tell_offers(talk, preview)
        return
    option, _, calls = rest.partition(" ")
    if option == "--calls":
        begun = await session.undo_calls(calls.split() or None)
        lines = [f"  {_offer(each)}" for each in begun.calls]
        talk.face.tell("note", "\n".join([f"undoing ({begun.turn}):", *lines]))
        return
    overrule = _overruled(rest)
    undone = await session.undo(overrule=overrule)
    talk.face.tell("warn", f"taken back: {_words(undone)} (the model does not see it)")
    _tell_effects(talk, undone)


async def redo(talk: Talk, rest: str) -> None:
    if rest:
        raise UserError(f"/redo {rest}: say /redo alone")
    _, session = talk.opened()
    _tell_files(talk, await session.redo())


async def rewind(talk: Talk, rest: str) -> None:
    _, session = talk.opened()
    turn, _, what = rest.partition(" ")
    if not turn:
        log = await session.events()
        hidden = {each.event.turn for each in log if isinstance(each.event, TurnHidden)}
        turns = [each.event for each in log if isinstance(each.event, TurnSettled)]
        lines = [
            f"  {each.turn}  {' '.join(words_of(each.turn, log).split())[:80]}"
            for each in turns
            if not each.hidden and each.turn not in hidden
        ]
        how = "/rewind TURN goes back to before it; add `conversation` or `files` for only that"
        talk.face.tell("note", "\n".join([*lines, how]) if lines else "there is no turn yet")
        return
    undone = await session.rewind(turn, what.strip() or None)
    talk.face.tell("warn", f"back to before: {_words(undone)}")
    _tell_effects(talk, undone)


async def diff(talk: Talk, rest: str) -> None:
    _, session = talk.opened()
    tell_diff(talk, await session.diff(rest or None))


def tell_diff(talk: Talk, text: str) -> None:
    lines = harmless(text).rstrip("\n").split("\n")
    if lines == [""]:
        talk.face.tell("dim", "no file was changed")
        return
    group: list[str] = []
    style = _style(lines[0])
    for line in lines[:LINES_MAX]:
        if _style(line) != style:
            talk.face.tell(style, "\n".join(group))
            group, style = [], _style(line)
        group.append(line)
    talk.face.tell(style, "\n".join(group))
    if len(lines) > LINES_MAX:
        talk.face.tell("dim", f"{len(lines) - LINES_MAX} more lines are not shown")


def _style(line: str) -> str:
    if line.startswith(("+++", "---", "diff ", "index ", "new file", "deleted file", "@@")):
        return "dim"
    return {"+": "good", "-": "bad"}.get(line[:1], "note")


def _overruled(rest: str) -> tuple[str, ...]:
    """`--overrule PATH` takes a file back although somebody changed it since."""
    if not rest:
        return ()
    option, _, path = rest.partition(" ")
    if option != "--overrule" or not path.strip():
        raise UserError(
            f"/undo {rest}: say /undo, /undo --preview, /undo --calls or /undo --overrule PATH"
        )
    return (path.strip(),)


def _words(undone: Undone) -> str:
    words = " ".join(undone.text.split())[:80] or "the last turn"
    return f"{words} ({undone.turn})"


def _tell_effects(talk: Talk, undone: Undone) -> None:
    if undone.files is not None:
        _tell_files(talk, undone.files)
    if undone.effects:
        besides = "what its calls did besides is not undone"
        talk.face.tell("warn", f"{FILES_NOT_RESTORED if undone.files is None else besides}:")
        talk.face.tell("warn", "\n".join(f"  {effect}" for effect in undone.effects))
    else:
        talk.face.tell("dim", "it had changed nothing")
    _tell_offers(talk, undone)


def _tell_offers(talk: Talk, undone: Undone) -> None:
    if undone.offers:
        lines = [f"  {each.call}  {_offer(each)}" for each in undone.offers]
        how = (
            "/undo --calls undoes by other calls what the last turn did; /undo --calls ID... these:"
        )
        talk.face.tell("note", "\n".join([how, *lines]))


def _offer(offer: UndoOffer) -> str:
    return f"{harmless(offer.effect)}, by {harmless(offer.undo)}"


def _tell_files(talk: Talk, files: FilesUndone | None) -> None:
    if files is None or not files.files:
        talk.face.tell("dim", "no file is changed")
        return
    for style, words in files_in_words(files):
        talk.face.tell(style, words)
