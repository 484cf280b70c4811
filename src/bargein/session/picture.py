"""The states of a session as a picture, drawn from the table that decides.

`python -m bargein.session.picture` prints it as Mermaid; a test holds the docs to it.
"""

from bargein.session.decide import TABLE
from bargein.session.state import Phase


def mermaid() -> str:
    """One arrow for each move from phase to phase, with the commands that may cause it."""
    moves: dict[tuple[Phase, Phase], list[str]] = {}
    for (phase, command), rule in TABLE.items():
        for to in rule.to:
            if to is not phase:
                moves.setdefault((phase, to), []).append(command.__name__)
    lines = ["stateDiagram-v2", "    [*] --> idle"]
    lines += [f"    {a} --> {b}: {', '.join(names)}" for (a, b), names in moves.items()]
    return "\n".join([*lines, "    ended --> [*]"])


def stays() -> str:
    """The commands that are carried out without leaving a phase, one line for each phase."""
    lines = []
    for phase in Phase:
        names = [c.__name__ for (p, c), rule in TABLE.items() if p is phase and phase in rule.to]
        if names:
            lines.append(f"- **{phase}**: {', '.join(names)}")
    return "\n".join(lines)


if __name__ == "__main__":
    print(mermaid())  # noqa: T201 - printing is what it is for
