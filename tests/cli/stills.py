"""Captured screens of the terminal for the documentation: the real program in a PTY, as SVG.

    ./dev python -m tests.cli.stills            # into docs/images
    ./dev python -m tests.cli.stills FOLDER     # somewhere else, to look at them

A picture has both sets of colours; the reader's own setting, light or dark, chooses. Look at each
of them afterwards in both.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.cli.recording import CHARACTER, LINE, MARGIN, Row, row_of
from tests.cli.screen import DOWN, Screen

FOLDER = Path(__file__).parents[2] / "docs" / "images"

DARK = {
    "paper": "#14161b",
    "default": "#d7dae0",
    "black": "#2b2f37",
    "brightblack": "#7f8794",
    "red": "#ef6b73",
    "green": "#8cc570",
    "brown": "#e3b55f",
    "blue": "#61a6ef",
    "magenta": "#c77ddb",
    "cyan": "#59b8c4",
}
LIGHT = {
    "paper": "#fbfaf7",
    "default": "#24292f",
    "black": "#24292f",
    "brightblack": "#6a727c",
    "red": "#b3261e",
    "green": "#2c6e2f",
    "brown": "#8a5a00",
    "blue": "#0b57a4",
    "magenta": "#7b2f96",
    "cyan": "#0b6970",
}

CODE = """def fetch(url, deadline):
    for attempt in range(5):
        wait_s = 2 ** attempt
        sleep(wait_s)
        if now() > deadline:
            raise
"""
OLD = CODE.partition("range(5):\n")[2]
NEW = """        wait_s = min(2 ** attempt, deadline - now())
        if wait_s <= 0:
            raise
        sleep(wait_s)
"""
TESTS = (
    "for n in 1 2 3 4; do echo tests/test_fetch.py::test_$n PASSED; done; "
    "echo tests/test_slow.py; exec sleep 600"
)

SCRIPT = f"""
[[answers]]
when = "deadline"
steps = [
    {{ do = "say", text = "The last wait is too long. I mend it." }},
    {{ do = "call", name = "todo", arguments = {{ items = [
        {{ text = "find the wait", state = "done" }},
        {{ text = "mend it", state = "doing" }},
        {{ text = "run the tests" }} ] }} }},
    {{ do = "call", name = "edit_file", arguments = {{ path = "fetch.py", old_text = '''{OLD}''', new_text = '''{NEW}''' }} }},
]
[[answers]]
when = "deadline"
steps = [
    {{ do = "call", name = "terminal", arguments = {{ command = "{TESTS}" }} }},
]
[[answers]]
when = "clean"
steps = [{{ do = "call", name = "terminal", arguments = {{ command = "rm -rf build/ && make" }} }}]
[[answers]]
when = "agents"
steps = [{{ do = "call", name = "delegate", arguments = {{ tasks = [
    {{ task = "Read the changes since 1.3" }}, {{ task = "Look for docs that changed" }} ] }} }}]
[[answers]]
when = "Read the changes"
steps = [{{ do = "call", name = "terminal", arguments = {{ command = "exec sleep 600" }} }}]
[[answers]]
when = "Look for docs"
steps = [{{ do = "say", text = "The page on models is older than its code" }}, {{ do = "pause", seconds = 600.0 }}]
[[answers]]
steps = [{{ do = "say", text = "So be it." }}]
[[answers]]
steps = [{{ do = "say", text = "So be it." }}]
[[answers]]
steps = [{{ do = "say", text = "So be it." }}]
"""  # noqa: E501 - as it stands in a script


@contextmanager
def terminal(rows: int, columns: int) -> Iterator[Screen]:
    with TemporaryDirectory() as folder:
        home = Path(folder) / "home"
        home.mkdir()
        (home / "fetch.py").write_text(CODE)
        screen = Screen("--mode", "auto-edit", home=home, script=SCRIPT, rows=rows, columns=columns)
        try:
            screen.wait_ready()
            yield screen
        finally:
            screen.close()


def at_work(screen: Screen) -> None:
    screen.enter("fetch waits past its deadline: mend it")
    screen.wait_for("tests/test_slow.py")
    screen.type("and write a test for it\t")
    screen.wait_for("queued")
    screen.type("skip the slow ones")
    screen.wait_until(lambda: screen.line == "skip the slow ones", "the line")


def asked(screen: Screen) -> None:
    screen.enter("clean up and build")
    screen.wait_for("4 always")


def sub_agents(screen: Screen) -> None:
    screen.enter("write the release notes with two agents")
    screen.wait_for("The page on models")
    screen.wait_for("exec sleep 600")


def chosen(screen: Screen) -> None:
    for title in ("Locks and canals", "Release 1.4", "A retry that is too late"):
        screen.enter(f"about {title}")
        screen.wait_for("So be it.")
        screen.wait_ready()
        screen.enter(f"/rename {title}")
        screen.wait_for("is now")
        screen.enter("/new")
        screen.wait_for("a new session")
        screen.type("\x0c")
        screen.wait_for("a new session", gone=True)
    screen.enter("/resume")
    screen.wait_for("Locks and canals")
    screen.type(DOWN)
    screen.wait_for("> /resume chat")


STILLS = {
    "terminal-work": (at_work, 32, 92),
    "terminal-narrow": (at_work, 40, 44),
    "terminal-question": (asked, 9, 92),
    "terminal-agents": (sub_agents, 14, 92),
    "terminal-resume": (chosen, 12, 92),
}


def picture(screen: Screen, title: str) -> str:
    """Returns the screen as it is, without the empty rows at its end."""
    rows = [row_of(screen.display, place) for place in range(screen.display.lines)]
    while rows and not rows[-1]:
        rows.pop()
    width = screen.display.columns * CHARACTER + 2 * MARGIN
    height = len(rows) * LINE + 2 * MARGIN
    texts = "\n".join(_line(row, place) for place, row in enumerate(rows) if row)
    return f"""\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" \
font-family="ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace" font-size="14">
<title>{escape(title)}</title>
<style>
{_rules(LIGHT)}
@media (prefers-color-scheme: dark) {{
{_rules(DARK)}
}}
</style>
<rect class="paper" width="100%" height="100%" rx="8"/>
{texts}
</svg>
"""


def _rules(colours: dict[str, str]) -> str:
    return "\n".join(f".{name} {{ fill: {value} }}" for name, value in colours.items())


def _line(row: Row, place: int) -> str:
    y = MARGIN + (place + 0.75) * LINE
    spans, column = [], 0
    for words, colour, bold in row:
        if words.strip():
            weight = ' font-weight="bold"' if bold else ""
            x = MARGIN + column * CHARACTER
            long = f' textLength="{len(words) * CHARACTER:.1f}"' if len(words) > 1 else ""
            name = colour if colour in DARK else "default"
            spans.append(f'<tspan class="{name}" x="{x:.1f}"{long}{weight}>{escape(words)}</tspan>')
        column += len(words)
    return f'<text y="{y:.0f}" xml:space="preserve">{"".join(spans)}</text>'


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, (scene, rows, columns) in STILLS.items():
        with terminal(rows, columns) as screen:
            scene(screen)
            (folder / f"{name}.svg").write_text(picture(screen, name.replace("-", ": ", 1)))
        sys.stdout.write(f"{name}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
