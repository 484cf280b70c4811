"""The rule for a session's place: where it works from its next turn on."""

from bargein.contracts.event import SessionPlaced
from bargein.session.commands import Done, Log, Refuse, SetPlace
from bargein.session.rules.moves import Decision, change
from bargein.session.state import SessionState


def set_place(state: SessionState, command: SetPlace) -> Decision:
    """A session in which nobody has spoken yet gets no event: the next event brings the place along
    (`Actor`), so that opening a terminal leaves no session behind."""
    place, before = command.place, state.place
    if place == before:
        return state, (Done(),)
    then = (before.workspace, before.staged) if before is not None else (place.workspace, False)
    if then != (place.workspace, place.staged):
        if state.busy:
            where = then[0] or "its folder"
            why = f"{state.turn} works in {where}; stop it before the session moves"
            return state, (Refuse("busy", why),)
        if state.restoring:
            why = f"files of {state.restoring} are being put back; move the session in a moment"
            return state, (Refuse("busy", why),)
    changed = change(state, place=place)
    if not (state.messages or state.turns):
        return changed, (Done(),)
    return changed, (Log((SessionPlaced(place, command.by),)), Done())
