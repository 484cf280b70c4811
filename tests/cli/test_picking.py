"""Choosing in the terminal: sessions and models from a menu, approvals by a word, files by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from bargein.cli.chat.markdown import Block
from bargein.cli.chat.paint import Painter, harmless
from bargein.cli.chat.view import asked_in_lines
from bargein.cli.receipts import in_full
from bargein.contracts.budget import Spent
from bargein.contracts.permission import Grant
from bargein.contracts.receipt import Receipt, ReceiptStatus, Scope
from bargein.contracts.tool import Approval, Question, QuestionKind
from tests.cli.conftest import Open
from tests.cli.screen import DOWN, ESCAPE, typed_late

TALKS = """
repeat = true
[[answers]]
steps = [{ do = "say", text = "so be it" }]
"""


def test_a_session_is_chosen_from_a_menu_by_arrows_or_by_words(chat: Open) -> None:
    screen = chat(script=TALKS)
    screen.wait_ready()
    for title in ("the parser", "the deploy script", "a poem"):
        screen.enter(f"about {title}")
        screen.wait_for("so be it")
        screen.wait_ready()
        screen.enter(f"/rename {title}")
        screen.wait_for(f"is now '{title}'")
        screen.enter("/new")
        screen.wait_for("a new session")
        screen.type("\x0c")
    screen.enter("/resume")
    screen.wait_for("the parser")
    assert screen.line == "/resume"
    screen.wait_status("type to search")
    # The last one used comes first.
    screen.type(DOWN + DOWN + "\r")
    screen.wait_for("about the deploy script")
    screen.wait_for("goes back")
    screen.enter("/sessions")
    screen.wait_for("a poem")
    # A blank behind the words changes nothing, and is replaced with them.
    screen.type("pars ")
    screen.wait_until(
        lambda: (
            screen.text_before_cursor == "> /sessions pars "
            and "the parser" in screen.text
            and "a poem" not in screen.text
        ),
        "the menu for all that was typed",
    )
    screen.type(DOWN)
    screen.wait_until(lambda: screen.line.startswith("/sessions chat-"), "its id")
    screen.type("\r")
    screen.wait_for("about the parser")
    # Escape leaves the menu; the line is then one like any other.
    screen.enter("/resume")
    screen.wait_for("a poem")
    screen.type(ESCAPE)
    screen.wait_for("a poem", gone=True)


def test_a_model_is_chosen_from_a_menu(chat: Open) -> None:
    screen = chat(script=TALKS, OPENAI_API_KEY="sk-x")
    screen.wait_ready()
    screen.enter("/model")
    screen.wait_for("openai:")
    screen.wait_for("in use: scripted")
    screen.type("loc")
    screen.wait_for("openai:", gone=True)


def test_an_approval_says_what_each_answer_allows_and_takes_y(chat: Open) -> None:
    script = """
[[answers]]
steps = [{ do = "call", name = "terminal", arguments = { command = "rm -rf nothing-here" } }]
[[answers]]
steps = [{ do = "say", text = "so be it" }]
"""
    screen = chat(script=script)
    screen.wait_ready()
    screen.enter("danger")
    screen.wait_for("1 allow   2 deny   3 for this session   4 always in this project")
    screen.wait_for("3 and 4 allow: terminal: rm -rf nothing-here")
    screen.wait_until(lambda: typed_late(screen, "y", "Enter answers: allow"), "the answer")
    screen.type("\r")
    screen.wait_for("✓ terminal")
    screen.wait_for("so be it")


@pytest.mark.parametrize("choices", [("allow", "deny"), ("allow", "deny", "session")])
def test_only_what_is_offered_is_explained(choices: tuple[str, ...]) -> None:
    grant = Grant("terminal", (("command", "make"),))
    asked = Question("Allow it?", kind=QuestionKind.APPROVAL, choices=choices, grant=grant)
    lines = asked_in_lines(asked, 60)
    assert [line.partition(":")[0] for line in lines[1:]] == (
        ["3 allows"] if Approval.SESSION in choices else []
    )


def test_a_file_with_a_space_in_its_name_is_completed_in_quotes(chat: Open, tmp_path: Path) -> None:
    (tmp_path / "my notes.txt").write_text("remember the milk")
    screen = chat(script=TALKS)
    screen.wait_ready()
    screen.type("read @my")
    screen.wait_for("my notes.txt")
    screen.type("\t\r")
    screen.wait_until(lambda: screen.line == 'read @"my notes.txt"', "the name in quotes")
    screen.type("\r")
    screen.wait_for("  with my notes.txt")


def test_code_and_tables_stand_one_line_apart() -> None:
    painter = Painter(colour=True)
    text = painter.block(Block("| a | b |\n|---|---|\n| 1 | 2 |"), 40)
    first, *_, last = harmless(text).split("\n")
    assert first.split() == ["a", "b"]
    assert last.split() == ["1", "2"]


PLAN = """
[[answers]]
steps = [
    { do = "call", name = "todo", arguments = { items = [{ text = "look around", state = "done" }, { text = "mend it", state = "doing" }] } },
    { do = "call", name = "read_file", arguments = { path = "script.toml" } },
]
[[answers]]
steps = [{ do = "say", text = "so be it" }]
"""  # noqa: E501 - as it stands in a script


def test_a_plan_stands_below_the_call_that_wrote_it(chat: Open) -> None:
    screen = chat(script=PLAN)
    screen.wait_ready()
    screen.enter("plan it")
    screen.wait_for("so be it")
    # The log, which has the plan, may be behind the words of an answer that comes at once.
    lines = [line.strip() for line in screen.wait_for("✓ todo").split("\n")]
    at = next(place for place, line in enumerate(lines) if line.startswith("✓ todo"))
    assert lines[at + 1 : at + 3] == ["✓ look around", "↳ mend it"]


def test_a_narrow_window_keeps_the_keys_in_the_status_line(chat: Open) -> None:
    script = """
[[answers]]
steps = [{ do = "say", text = "waiting" }, { do = "pause", seconds = 600 }]
"""
    screen = chat("--mode", "auto-edit", script=script, columns=44)
    screen.wait_ready()
    screen.enter("wait")
    screen.wait_for("waiting")
    screen.type("later\t")
    screen.wait_for("queued")
    screen.wait_status("working · Enter steers · Esc stops")


@pytest.mark.parametrize(
    ("requests", "counted"), [(1, "1 model request,"), (2, "2 model requests,")]
)
def test_a_receipt_counts_requests(requests: int, counted: str) -> None:
    spent = Spent(requests=requests)
    receipt = Receipt(ReceiptStatus.STOPPED, Scope.TURN, "s", "t1", spent=spent)
    assert f"in all: {counted} 0 tokens in" in in_full(receipt)
