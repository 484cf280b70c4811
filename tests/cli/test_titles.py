"""The subject of a call is shown with it, however quick it is."""

from tests.cli.conftest import Open

SCRIPT = """
repeat = true
[[answers]]
when = "^read"
steps = [{ do = "call", name = "read_file", arguments = { path = "script.toml" } }]
[[answers]]
when = "^read"
steps = [{ do = "say", text = "it is read" }]
"""


def test_a_quick_call_is_shown_with_its_title(chat: Open) -> None:
    screen = chat(script=SCRIPT)
    screen.wait_ready()
    screen.enter("read it")
    screen.wait_for("it is read")
    assert "✓ read_file  script.toml · 0." in screen.text


def test_a_quick_call_is_told_with_its_title_line_by_line(chat: Open) -> None:
    screen = chat(script=SCRIPT, TERM="dumb")
    screen.wait_for("· /help")
    screen.enter("read it")
    screen.wait_for("it is read")
    assert "[read_file  script.toml ...]" in screen.text
