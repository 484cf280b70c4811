"""A question is shown in full: nobody approves what they could not read."""

import sys

import pytest

from bargein.cli.chat.paint import folded
from bargein.cli.chat.view import asked_in_lines
from bargein.contracts.tool import Approval, Question, QuestionKind
from bargein.tools.approval import question
from tests.cli.conftest import Open


def script(command: str) -> str:
    return f"""
[[answers]]
steps = [{{ do = "call", name = "terminal", arguments = {{ command = "{command}" }} }}]
[[answers]]
steps = [{{ do = "say", text = "so be it" }}]
"""


def test_what_does_not_fit_into_a_line_goes_on_in_the_next(chat: Open) -> None:
    command = "rm -rf build/of/a/project/with/a/long/name && echo what is at the end"
    screen = chat(script=script(command), columns=50)
    screen.wait_ready()
    screen.enter("danger")
    screen.wait_for("1 allow   2 deny")
    assert "what is at the end" in " ".join(screen.text.split())


def test_what_does_not_fit_above_the_line_stands_in_what_scrolls(chat: Open) -> None:
    steps = " && ".join(f"rm -rf build/of/part{number:03}" for number in range(40))
    screen = chat(script=script(steps), columns=70, rows=50)
    screen.wait_ready()
    screen.enter("danger")
    screen.wait_for("1 allow   2 deny")

    def all_is_there() -> bool:
        bare = "".join(screen.text.split())
        return all(f"build/of/part{number:03}" in bare for number in range(40))

    screen.wait_until(all_is_there, "every part of the command")
    screen.wait_for("all of it stands above")


def choosing(*choices: str) -> str:
    return f"""
[[answers]]
steps = [{{ do = "call", name = "ask", arguments = {{ question = "Which?", choices = {list(choices)} }} }}]
[[answers]]
steps = [{{ do = "say", text = "so be it" }}]
"""  # noqa: E501 - as it stands in a script


def test_choices_that_do_not_fit_beside_each_other_stand_below_each_other(chat: Open) -> None:
    long = "the one that takes so many words that no line has room for all of them"
    screen = chat(script=choosing("red", "green", long), columns=40)
    screen.wait_ready()
    screen.enter("choose")
    text = screen.wait_for("2 green\n")
    assert "  1 red\n" in text
    assert f"3 {long}" in " ".join(text.split())
    screen.enter("/answer 3")
    screen.wait_for("so be it")


def test_choices_that_do_not_fit_above_the_line_stand_in_what_scrolls(chat: Open) -> None:
    choices = [f"choice number {number} of many" for number in range(1, 16)]
    screen = chat(script=choosing(*choices), columns=60, rows=40)
    screen.wait_ready()
    screen.enter("choose")
    text = screen.wait_for("all of it stands above")
    assert all(f"  {number} {each}\n" in text for number, each in enumerate(choices, 1))
    screen.enter("/answer 15")
    screen.wait_for("answered: choice number 15 of many")


SLOW_TO_PAINT = """
import bargein.cli.chat.app
from bargein.cli.main import main
bargein.cli.chat.app.FRAME_S = 2.0
raise SystemExit(main())
"""


def test_no_picture_refers_to_text_above_that_is_not_there_yet(chat: Open) -> None:
    """A key redraws the line between an event and the next time that the program paints by itself.
    The program here paints seldom, so that a key surely comes between."""
    choices = [f"choice number {number} of many" for number in range(1, 16)]
    program = (sys.executable, "-c", SLOW_TO_PAINT)
    screen = chat(script=choosing(*choices), columns=60, rows=40, command=program)
    screen.wait_ready()
    screen.enter("choose")

    def typed_until_asked() -> bool:
        screen.type("x")
        return "all of it stands above" in screen.text

    text = screen.wait_until(typed_until_asked, "the question")
    assert all(f"  {number} {each}\n" in text for number, each in enumerate(choices, 1))


def test_on_a_low_screen_it_scrolls_sooner(chat: Open) -> None:
    steps = " && ".join(f"rm -rf build/of/part{number:03}" for number in range(5))
    screen = chat(script=script(steps), columns=50, rows=11)
    screen.wait_ready()
    screen.enter("danger")
    screen.wait_for("1 allow   2 deny")
    screen.wait_for("all of it stands above")


def test_it_is_there_again_after_a_restart(chat: Open) -> None:
    steps = " && ".join(f"rm -rf build/of/part{number:03}" for number in range(40))
    screen = chat(script=script(steps))
    screen.wait_ready()
    screen.enter("danger")
    screen.wait_for("1 allow   2 deny")
    screen.close()
    again = chat("-c", script=script(steps), rows=60)
    again.wait_for("part039")


def test_arguments_are_told_by_their_names_unless_they_stand_in_the_question() -> None:
    asked = question("write notes.txt", "", {"path": "notes.txt", "content": "one\npath: x"})
    assert asked_in_lines(asked, 60) == (
        "Allow this call? write notes.txt",
        "path: notes.txt",
        "content: one",
        "  path: x",
    )
    asked = question("rm -rf build", "it deletes", {"command": "rm -rf build"})
    assert asked_in_lines(asked, 60) == ("Allow this call (it deletes)? rm -rf build",)
    # Also where one of them stands in the title by chance.
    asked = question("rm -rf /x", "", {"command": "rm -rf /x", "cwd": "/"})
    assert asked_in_lines(asked, 60)[1:] == ("command: rm -rf /x", "cwd: /")


def test_all_of_it_is_there_and_no_line_passes_for_another() -> None:
    command = " && ".join(f"rm -rf part{number:04}" for number in range(1200))
    asked = question(command[:77] + "...", "", {"command": command, "cwd": "sub"})
    lines = asked_in_lines(asked, 60)
    assert len(lines) > 400
    told = " ".join(line.strip() for line in lines)
    assert all(f"part{number:04}" in told for number in range(1200))
    assert [line for line in lines if not line.startswith("  ")][-1] == "cwd: sub"
    # Broken at a blank, the rest begins like another argument.
    forged = question("x", "", {"command": "true " * 11 + "cwd: /safe"})
    assert asked_in_lines(forged, 60)[-1].startswith("  ")


def test_what_is_no_json_is_told_as_it_is_and_commands_nothing() -> None:
    asked = Question("Which?\x1b[2J", QuestionKind.QUESTION, (Approval.ALLOW,), "a\tb\n{c")
    assert asked_in_lines(asked, 60) == ("Which?", "a   b", "{c")


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("", [""]),
        ("short", ["short"]),
        ("two words here", ["two words", "here"]),
        ("0123456789ab", ["0123456789", "ab"]),
        ("日本語のテキスト", ["日本語のテ", "キスト"]),
        ("one\n\ntwo", ["one", "", "two"]),
        ("rm 0123456789ab", ["rm", "0123456789", "ab"]),
    ],
)
def test_lines_are_folded_at_spaces_where_there_are_any(text: str, lines: list[str]) -> None:
    assert folded(text, 10) == lines
