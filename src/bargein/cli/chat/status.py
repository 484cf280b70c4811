"""The status line: on the left, what the agent is doing and what the keys do now; on the right, as
far as there is room, the model and the usage."""

from prompt_toolkit.formatted_text import StyleAndTextTuples

from bargein.cli.chat.paint import Painter, clipped
from bargein.cli.chat.talk import Talk
from bargein.contracts.permission import PermissionMode
from bargein.session.state import Phase

CONTEXT_TOLD_SHARE = 0.2
MODE_WORDS = {"steer": "steers", "queue": "queues", "interrupt": "redirects"}


def status(talk: Talk, painter: Painter, hint: str, width: int) -> StyleAndTextTuples:
    dot = f" {painter.symbols.dot} "
    style, doing, keys = _doing(talk)
    keys = [hint] if hint else keys
    besides = [each for each in _besides(talk) if each and each != doing]
    told_of = (talk.activity.used_in_words(), _model(talk), _context_left(talk))
    right = [each for each in told_of if each]
    # In a narrow window the keys stay longest, and of these the first and the last.
    left = [doing, *besides, *keys]
    while besides and len(dot.join(left)) + 3 > width:
        besides.pop()
        left = [doing, *besides, *keys]
    if len(keys) > 2 and len(dot.join(left)) + 3 > width:
        left = [doing, keys[0], keys[-1]]
    words, told = dot.join(left), dot.join(right)
    while right and len(words) + len(told) + 3 > width:
        right = right[:-1] if len(right) == 1 else right[1:]
        told = dot.join(right)
    words = clipped(words, max(8, width - len(told) - (3 if told else 1)))
    gap = " " * max(1, width - len(words) - len(told) - 2)
    words, told = painter.symbols.fit(words), painter.symbols.fit(told)
    head, tail = words[: len(doing)], words[len(doing) :]
    return [(style, f" {head}"), ("class:dim", f"{tail}{gap}{told}")]


def _besides(talk: Talk) -> list[str]:
    """Returns what the user should know beside what is going on, the most important first."""
    behind = len(talk.activity.in_background)
    mode = talk.mode
    return [
        f"{behind} in the background" if behind else "",
        f"{mode} mode" if mode is not None and mode is not PermissionMode.ASK else "",
        _waiting(talk),
    ]


def _doing(talk: Talk) -> tuple[str, str, list[str]]:
    """Returns a style, what is going on, and what the keys do about it."""
    keys = talk.face.keys
    if talk.session is None and talk.asked is None:
        return "class:dim", "starting", []
    if talk.stopping:
        return "class:warn", "stopping…", [f"{keys['interrupt']} hurries"]
    if talk.asked is not None:
        choices = talk.asked[1].question.choices
        how = f"type {'a number' if choices else 'the answer'} and {keys['send']}"
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
    if talk.activity.asides:
        return "class:busy", "answering beside", [f"{keys['stop']} stops it"]
    if talk.activity.unanswered:
        return "class:warn", "unanswered", [f"{keys['send']} asks again"]
    return "class:good", "ready", []


def _waiting(talk: Talk) -> str:
    state = talk.state
    if state is None or not state.waiting:
        return ""
    return f"{len(state.waiting)} {'held' if state.held else 'waiting'}"


def _context_left(talk: Talk) -> str:
    """Says how much of the model's context the last request left, once half of it is used."""
    limit = talk.engine.context_tokens if talk.engine is not None else None
    used = talk.activity.context_used
    if not limit or used < limit * CONTEXT_TOLD_SHARE:
        return ""
    return f"{max(0.0, 1 - used / limit):.0%} context left"


def _model(talk: Talk) -> str:
    name = talk.engine.model_name if talk.engine is not None else ""
    return name.rpartition("@")[0] or name
