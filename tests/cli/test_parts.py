"""The parts of the terminal program that need no terminal."""

import subprocess
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import pairwise
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given
from prompt_toolkit.input import DummyInput

from bargein.cancel import CancelSource, Token
from bargein.cli.arguments import command_line
from bargein.cli.chat.activity import Activity
from bargein.cli.chat.app import Chat
from bargein.cli.chat.input_line import Pastes
from bargein.cli.chat.markdown import Block, OpenMarkdown
from bargein.cli.chat.paint import Painter, clipped, harmless
from bargein.cli.completion import bash, fish, levels
from bargein.cli.default_agent import describe_found_model
from bargein.cli.run import Milestones
from bargein.contracts.choice import answer_of, choice_of
from bargein.contracts.event import ModelUsed, Recorded, TurnOutcome, TurnSettled, TurnStarted
from bargein.contracts.live import ReasoningDelta, StepBegan, TextDelta
from bargein.contracts.model import ModelRequest, ModelStream, ToolCall, Usage
from bargein.contracts.receipt import StepKind
from bargein.contracts.tool import Question, QuestionKind
from bargein.models.local.notices import RuntimeStopped, WhyStopped
from bargein.process import Hiding
from bargein.runtime.config import load_config
from bargein.runtime.key_names import key_sequence
from bargein.runtime.model_in_use import ModelInUse
from bargein.runtime.settings import ACTIONS
from bargein.view import title_of

MARKDOWN = """\
# Title

A paragraph
of two lines.

- one

  more of one
- two

```python
x = "a"

y = 1
```
1. first
2. second

Last.
"""


def blocks(pieces: list[str]) -> list[Block]:
    markdown = OpenMarkdown()
    return [block for piece in pieces for block in markdown.add(piece)] + markdown.finish()


def test_blocks_are_split_where_a_reader_would() -> None:
    assert blocks([MARKDOWN]) == [
        Block("# Title"),
        Block("A paragraph\nof two lines."),
        Block("- one\n\n  more of one\n- two"),
        Block('x = "a"\n\ny = 1', "python"),
        Block("1. first\n2. second"),
        Block("Last."),
    ]


@given(st.lists(st.integers(0, len(MARKDOWN)), max_size=30))
def test_however_it_streams_the_blocks_are_the_same(cuts: list[int]) -> None:
    places = [0, *sorted(cuts), len(MARKDOWN)]
    pieces = [MARKDOWN[a:b] for a, b in pairwise(places)]
    assert blocks(pieces) == blocks([MARKDOWN])


@given(st.lists(st.sampled_from(["```", "~~~", "- a", "  b", "", "text", "    code"])))
def test_no_word_is_lost_whatever_the_markdown(lines: list[str]) -> None:
    kept = "\n".join(block.text for block in blocks(["\n".join(lines)]))
    for word in ("text", "a", "b", "code"):
        assert kept.count(word) >= sum(line.split()[-1:] == [word] for line in lines)


def test_a_long_listing_comes_piece_by_piece() -> None:
    listing = "```py\n" + "".join(f"line {number}\n" for number in range(100)) + "```\n"
    found = blocks([listing])
    assert len(found) > 5
    assert all(block.code == "py" for block in found)
    assert [block.more for block in found] == [True] * (len(found) - 1) + [False]
    assert "\n".join(block.text for block in found).split("\n") == [
        f"line {number}" for number in range(100)
    ]


def test_what_is_drawn_fits_and_commands_nothing() -> None:
    painter = Painter(colour=True)
    drawn = painter.block(Block("# Title\n\n" + "word " * 100 + "\x1b[2J\x07"), 40)
    assert all(len(harmless(line)) <= 40 for line in drawn.split("\n"))
    assert "\x07" not in drawn
    assert "\x1b[2J" not in drawn
    assert harmless(drawn).startswith("Title")
    assert clipped("日本語のとても長い行", 10) == "日本語の…"


def test_without_colours_lines_are_still_broken_at_spaces() -> None:
    painter = Painter(colour=False)
    assert painter.block(Block("some words that are long"), 24) == "some words that are long"
    assert painter.block(Block("some words that are long"), 22) == "some words that are\nlong"
    code = Block("def name(one, two):\n    return one", "python")
    assert painter.block(code, 20) == "  def name(one,\n  two):\n      return one"


@pytest.mark.parametrize(
    ("line", "choice"),
    [
        ("1", "allow"),
        (" 2 ", "deny"),
        ("a", "allow"),
        ("Deny", "deny"),
        ("3", None),
        ("", None),
        ("allow it", None),
        ("yes", None),
        ("0", None),
    ],
)
def test_only_a_number_a_letter_or_the_whole_choice_is_one(line: str, choice: str | None) -> None:
    assert choice_of(line, ("allow", "deny")) == choice


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("1", "allow"),
        ("yes", "allow"),
        ("Y", "allow"),
        ("no", "deny"),
        ("n", "deny"),
        ("no, use the bin", "no, use the bin"),
    ],
)
def test_yes_and_no_answer_an_approval_when_they_are_said_to_be_an_answer(
    words: str, meant: str
) -> None:
    approval = Question("Allow this?", QuestionKind.APPROVAL, ("allow", "deny"))
    assert answer_of(words, approval) == meant
    open_question = Question("Go on?", QuestionKind.QUESTION, ("maybe", "later"))
    assert answer_of("yes", open_question) == "yes"
    assert answer_of("2", open_question) == "later"


def test_a_choice_that_is_written_whole_is_not_taken_for_a_number() -> None:
    assert choice_of("2", ("4", "3", "2")) == "2"
    assert choice_of("1", ("4", "3", "2")) == "4"


def test_a_letter_that_two_choices_begin_with_is_none() -> None:
    assert choice_of("d", ("delete", "deny")) is None


def test_pastes_are_folded_when_large_and_unfolded_whole() -> None:
    pastes = Pastes()
    assert pastes.fold("two\r\nlines") == "two\nlines"
    large = "x\n" * 50
    line = f"see {pastes.fold(large)} and {pastes.fold('y' * 2000)}"
    assert line == "see [pasted #1: 51 lines] and [pasted #2: 2000 characters]"
    assert pastes.unfold(line) == f"see {large} and {'y' * 2000}"
    assert pastes.placeholder_before("see [pasted #1: 51 lines]") == "[pasted #1: 51 lines]"
    assert pastes.unfold("[pasted #9: 3 lines]") == "[pasted #9: 3 lines]"


def test_the_use_of_a_session_is_told_with_its_cost_where_that_is_known() -> None:
    activity = Activity(lambda: 0.0)
    assert activity.used_in_words() == ""
    activity.see(Recorded(1, 0.0, ModelUsed("t1", "m", Usage(1000, 200))))
    assert activity.used_in_words() == "1200 tokens"
    activity.see(Recorded(2, 0.0, ModelUsed("t1", "m", Usage(20_000, 200, cost=0.0123))))
    assert activity.used_in_words() == "21k tokens · at least $0.0123"


def test_a_call_is_shown_by_what_it_does() -> None:
    assert title_of(ToolCall("1", "terminal", '{"pty": true, "command": "make\\n  test"}')) == (
        "make test"
    )
    assert title_of(ToolCall("1", "terminal", "{broken")) == ""


def test_every_default_key_is_a_key() -> None:
    assert all(key_sequence(key) for keys, _ in ACTIONS.values() for key in keys)
    assert key_sequence("Alt-Up") == ("escape", "up")
    assert key_sequence("ctrl-left") == ("c-left",)


def test_completion_knows_every_command_and_the_scripts_are_good_shell() -> None:
    found = list(levels(command_line(), ()))
    script = bash(found)
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    asked = f"{script}\nCOMP_WORDS=(bargein sessions ex) COMP_CWORD=2; _bargein; echo $COMPREPLY"
    done = subprocess.run(["bash"], input=asked, text=True, check=True, capture_output=True)
    assert done.stdout == "export\n"
    assert "complete -c bargein -n __fish_use_subcommand -a demo" in fish(found)


class Warming:
    """A model that can be loaded ahead."""

    name = "local"
    context_tokens = None

    def __init__(self) -> None:
        self.endpoints = (self,)
        self.warmed = 0

    async def warm_up(self, token: Token) -> None:
        token.check()
        self.warmed += 1

    @asynccontextmanager
    async def open(self, request: ModelRequest, token: Token) -> AsyncIterator[ModelStream]:
        raise NotImplementedError
        yield

    async def aclose(self) -> None:
        self.warmed = -1


@pytest.mark.anyio
async def test_a_model_is_warmed_up_and_closed_with_those_before_it() -> None:
    model = Warming()
    async with AsyncExitStack() as stack:
        models = ModelInUse(load_config({}), stack, Hiding(), None)
        with CancelSource("test") as source:
            await models.begin(model, source.token)
            await models.warm_up(source.token)
        assert model.warmed == 1
    assert model.warmed == -1


def test_a_settled_turn_leaves_nothing_running_on_the_screen() -> None:
    activity = Activity(lambda: 1.0)
    activity.stopping = True
    activity.see(Recorded(1, 0.0, TurnStarted("t1", ())))
    activity.see(Recorded(2, 0.0, TurnSettled("t1", TurnOutcome.COMPLETED)))
    assert not activity.stopping
    assert not activity.calls
    began_at: float | None = activity.turn_began_at
    assert began_at is None


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_what_took_long_is_not_told_when_it_is_over(tmp_path: Path) -> None:
    chat = Chat(
        load_config({"BARGEIN_HOME": str(tmp_path), "BARGEIN_CHAT_HOST": "0"}),
        keyboard=DummyInput(),
    )

    def told() -> bool:
        return any("Reading: 8 of 9" in piece[1] for piece in chat._status())

    for event in (
        TextDelta("t1", "Hello"),
        ReasoningDelta("t1", "Hm"),
        Recorded(7, 0.0, TurnSettled("t1", TurnOutcome.STOPPED)),
    ):
        chat.notice("Reading: 8 of 9 tokens")
        chat.show(StepBegan("t1", StepKind.MODEL, "local"))
        assert told()
        chat.show(event)
        assert not told()


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_what_is_typed_is_written_once_for_each_picture_and_before_it(tmp_path: Path) -> None:
    """A file for each of many keys that come at once would keep everything else waiting."""
    chat = Chat(
        load_config({"BARGEIN_HOME": str(tmp_path), "BARGEIN_CHAT_HOST": "0"}),
        keyboard=DummyInput(),
    )
    draft = tmp_path / "draft" / "line"
    for _ in range(20):
        chat.buffer.insert_text("x")
    assert not draft.exists()
    chat.app.before_render.fire()
    assert draft.read_text() == 20 * "x"
    draft.unlink()
    chat.app.before_render.fire()
    assert not draft.exists()


def test_the_tiny_model_is_introduced_with_what_it_cannot_do() -> None:
    found = describe_found_model("openai:m@http://127.0.0.1:1/v1", "Ollama runs on this machine")
    assert found == ["openai:m@http://127.0.0.1:1/v1: Ollama runs on this machine"]
    local, tiny = describe_found_model("local", "no key is set")
    assert local == "local: no key is set"
    assert "use no tools" in tiny


@pytest.mark.anyio
async def test_the_end_of_a_local_model_is_told_unless_it_is_our_own_doing() -> None:
    told: list[str] = []
    async with AsyncExitStack() as stack:
        models = ModelInUse(load_config({}), stack, Hiding(), told.append)
        hear = models._local.on_notice
        assert hear is not None
        hear(RuntimeStopped(WhyStopped.CLOSED))
        hear(RuntimeStopped(WhyStopped.IDLE))
    assert told == ["The local model was stopped (idle)."]


def test_where_a_line_stays_each_kind_of_progress_is_told_once() -> None:
    told: list[str] = []
    tell = Milestones(told.append)
    for words in ("Fetching it: 1 %", "Fetching it: 9 %", "Loading it", "Reading: 1 of 2 tokens"):
        tell(words)
    tell("Reading: 7 of 9 tokens")
    assert told == ["Fetching it: 1 %", "Loading it", "Reading: 1 of 2 tokens"]
