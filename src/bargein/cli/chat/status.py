"""The status line: on the left, what the agent is doing and what the keys do now; on the right, as
far as there is room, the model and the usage."""

from prompt_toolkit.formatted_text import StyleAndTextTuples

from bargein.cli.chat.paint import Painter, clipped
from bargein.cli.chat.talk import Talk
from bargein.contracts.permission import PermissionMode
from bargein.session.state import Phase

MODE_WORDS = {"steer": "steers", "queue": "queues", "interrupt": "redirects"}


def status(talk: Talk, painter: Painter, hint: str, width: int) -> StyleAndTextTuples:
    dot = f" {painter.symbols.dot} "
    style, doing, keys = _doing(talk)
    left = [doing, *([hint] if hint else keys)]
    waiting = _waiting(talk)
    if waiting and waiting != doing:
        left.insert(1, waiting)
    mode = talk.mode
    if mode is not None and mode is not PermissionMode.ASK:
        left.insert(1, f"{mode} mode")
    beside = len(talk.activity.in_background)
    if beside:
        left.insert(1, f"{beside} in the background")
    right = [each for each in (talk.activity.used_in_words(), _model(talk)) if each]
    words, told = dot.join(left), dot.join(right)
    while right and len(words) + len(told) + 3 > width:
        right = right[:-1] if len(right) == 1 else right[1:]
        told = dot.join(right)
    words = clipped(words, max(8, width - len(told) - (3 if told else 1)))
    gap = " " * max(1, width - len(words) - len(told) - 2)
    words, told = painter.symbols.fit(words), painter.symbols.fit(told)
    head, tail = words[: len(doing)], words[len(doing) :]
    return [(style, f" {head}"), ("class:dim", f"{tail}{gap}{told}")]


def _doing(talk: Talk) -> tuple[str, str, list[str]]:
    """Returns a style, what is going on, and what the keys do about it."""
    keys = talk.face.keys
    if talk.session is None:
        return "class:dim", "starting", []
    if talk.stopping:
        return "class:warn", "stopping…", [f"{keys['interrupt']} hurries"]
    if talk.asked is not None:
        choices = talk.asked[1].question.choices
        how = f"type a number and {keys['send']}" if choices else "/answer WORDS"
        return "class:ask", "waits for you", [how, f"{keys['stop']} stops"]
    if talk.shell is not None:
        return "class:warn", "running your command", [f"{keys['stop']} stops it"]
    state = talk.state
    phase = state.phase if state is not None else Phase.IDLE
    if phase is Phase.IDLE and talk.activity.turn_began_at is not None:
        # The turn is over for the user when its end is on the screen.
        phase = Phase.RUNNING
    if phase is Phase.RUNNING:
        enter = f"{keys['send']} {MODE_WORDS[talk.enter_mode]}"
        return "class:busy", "working", [enter, f"{keys['queue']} queues", f"{keys['stop']} stops"]
    if phase is Phase.PAUSED:
        return "class:warn", "paused", ["/continue goes on", f"{keys['stop']} stops"]
    if state is not None and state.held and not talk.activity.unanswered:
        return "class:warn", _waiting(talk) or "held", [f"{keys['send']} continues"]
    if talk.activity.unanswered:
        return "class:warn", "unanswered", [f"{keys['send']} asks again"]
    return "class:good", "ready", []


def _waiting(talk: Talk) -> str:
    state = talk.state
    if state is None or not state.waiting:
        return ""
    return f"{len(state.waiting)} {'held' if state.held else 'waiting'}"


def _model(talk: Talk) -> str:
    name = talk.engine.model_name if talk.engine is not None else ""
    return name.rpartition("@")[0] or name
