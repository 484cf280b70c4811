"""Notifications of the terminal itself: a long turn has ended, or an answer is needed.

`chat.notify` chooses the means. `auto` uses what the terminal is known to understand (OSC 9 or OSC
777), and otherwise the bell, which tmux and most terminals turn into a mark on the window. Pure.
"""

from collections.abc import Mapping

from bargein.contracts.visible import visible
from bargein.view import Change, QuestionOpened, TurnClosed

TITLE = "Bargein"
WORDS_MAX = 200
BELL = "\a"
_OSC_9 = ("iTerm.app", "WezTerm", "ghostty")
_OSC_777 = ("foot", "rxvt", "vte")


def means_of(setting: str, environment: Mapping[str, str]) -> str:
    """Returns the means for this terminal: `osc9`, `osc777`, `bell` or `off`."""
    if setting != "auto":
        return setting
    if environment.get("TMUX") or environment.get("STY"):
        # A multiplexer swallows what it does not know, and passes the bell on.
        return "bell"
    program = environment.get("TERM_PROGRAM", "")
    terminal = environment.get("TERM", "")
    if program in _OSC_9 or "kitty" in terminal or "ghostty" in terminal:
        return "osc9"
    if environment.get("VTE_VERSION") or any(each in terminal for each in _OSC_777):
        return "osc777"
    return "bell"


def sequence(means: str, words: str) -> str:
    """Returns what is written to the terminal; empty if nothing is."""
    if means == "off":
        return ""
    # Nothing of a session's may end the sequence or begin another.
    plain = " ".join(visible(words).split()).replace(";", ",")[:WORDS_MAX]
    if means == "osc9":
        return f"\x1b]9;{TITLE}: {plain}{BELL}"
    if means == "osc777":
        return f"\x1b]777;notify;{TITLE};{plain}{BELL}"
    return BELL


def worth_telling(change: Change, now: float, after_s: float) -> str:
    """Returns the words of a notification for a change; empty if it is worth none."""
    match change:
        case QuestionOpened(question=asked):
            return f"waits for you: {asked.question.text}"
        case TurnClosed(turn=turn) if now - turn.began_at >= after_s:
            return f"{turn.outcome}: {turn.text or turn.error}"
        case _:
            return ""
