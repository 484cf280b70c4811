"""The comfort of the terminal: diffs of edits, whole results, own commands, answers by typing."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from bargein.cli.chat.activity import Activity
from bargein.cli.chat.before import called
from bargein.cli.chat.edits import edit_lines, whole_result
from bargein.cli.chat.file_index import FileIndex, list_files, matching
from bargein.cli.chat.mentions import mention_of, mentioned_files
from bargein.cli.chat.view import child_doing
from bargein.contracts.model import Text
from bargein.contracts.tool import CallResult, CallStatus
from bargein.errors import UserError
from bargein.runtime.config import load_config, trust_file
from bargein.runtime.custom_commands import custom_commands
from bargein.tools.todo import todo_of
from bargein.view import CallState, Picture, ShownCall, ShownChild
from tests.cli.conftest import Open
from tests.cli.screen import typed_late

EDIT = '{"path": "a.py", "old_text": "one\\ntwo\\nthree\\n", "new_text": "one\\nTWO\\nthree\\n"}'


def a_call(name: str, arguments: str, status: CallStatus = CallStatus.FINISHED) -> ShownCall:
    return ShownCall("t1_1_1", "t1", name, 0.0, arguments=arguments, status=status)


class TestEdits:
    def test_an_edit_is_shown_as_a_diff(self) -> None:
        assert edit_lines(a_call("edit_file", EDIT)) == [
            ("dim", "  one"),
            ("bad", "- two"),
            ("good", "+ TWO"),
            ("dim", "  three"),
        ]

    def test_a_session_that_is_opened_again_shows_it_too(self) -> None:
        call = a_call("edit_file", EDIT)
        call.result = CallResult(CallStatus.FINISHED, (Text("ok"),))
        assert called(call).changed == tuple(edit_lines(call))
        assert len(called(call).changed) == 4

    def test_a_written_file_is_all_new(self) -> None:
        call = a_call("write_file", '{"path": "a", "content": "x\\n\\u001b[31my\\n"}')
        assert edit_lines(call) == [("good", "+ x"), ("good", "+ y")]

    @pytest.mark.parametrize(
        "call",
        [
            a_call("edit_file", EDIT, CallStatus.STOPPED),
            a_call("edit_file", "not JSON"),
            a_call("edit_file", '{"path": "a.py"}'),
            a_call("terminal", '{"command": "ls"}'),
        ],
    )
    def test_nothing_else_is(self, call: ShownCall) -> None:
        assert edit_lines(call) == []

    def test_a_whole_result_is_bounded_and_harmless(self) -> None:
        call = a_call("terminal", "{}")
        call.result = CallResult(CallStatus.FINISHED, (Text("a\x1b[31mb\n"), Text("c")))
        assert whole_result(call) == "ab\n\nc"
        call.result = CallResult(CallStatus.FINISHED, (Text("x" * 300_000),))
        assert len(whole_result(call)) < 101_000


class TestOwnCommands:
    @pytest.fixture
    def environment(self, tmp_path: Path) -> dict[str, str]:
        return {"HOME": str(tmp_path), "BARGEIN_HOME": str(tmp_path / "data")}

    @pytest.fixture
    def own(self, tmp_path: Path) -> Path:
        place = tmp_path / ".config" / "bargein" / "commands"
        place.mkdir(parents=True)
        return place

    @pytest.fixture
    def project(self, tmp_path: Path) -> Path:
        place = tmp_path / "project" / ".bargein" / "commands"
        place.mkdir(parents=True)
        return place

    def test_the_users_own_count(
        self, environment: dict[str, str], own: Path, tmp_path: Path
    ) -> None:
        (own / "review.md").write_text("# Review a file\n\nReview $ARGUMENTS closely.\n")
        (own / "plain.md").write_text("Say hello.")
        (own / "Not a name.md").write_text("x")
        found = custom_commands(environment, tmp_path)
        assert sorted(found) == ["plain", "review"]
        assert found["review"].help == "Review a file"
        assert found["review"].message("a.py") == "# Review a file\n\nReview a.py closely."
        assert found["plain"].message("in French") == "Say hello.\n\nin French"

    def test_a_projects_wait_for_approval_and_are_asked_about_again_when_they_change(
        self, environment: dict[str, str], own: Path, project: Path
    ) -> None:
        folder = project.parent.parent
        (project / "deploy.md").write_text("Deploy it.")
        (project / "review.md").write_text("The project's review.")
        (own / "review.md").write_text("My review.")
        assert sorted(custom_commands(environment, folder)) == ["review"]
        (request,) = load_config(environment, folder=folder).left_out
        assert "/deploy sends:" in request.shown()
        trust_file(environment).judge(request, approved=True)
        found = custom_commands(environment, folder)
        assert found["deploy"].help == "Deploy it. (of this project)"
        # The user's own of that name counts more.
        assert found["review"].text == "My review."
        assert load_config(environment, folder=folder).left_out == ()
        (project / "deploy.md").write_text("Delete it.")
        assert sorted(custom_commands(environment, folder)) == ["review"]

    def test_one_that_cannot_be_read_is_named(
        self, environment: dict[str, str], own: Path, tmp_path: Path
    ) -> None:
        (own / "broken.md").write_bytes(b"\xff\xfe")
        with pytest.raises(UserError, match=r"broken\.md"):
            custom_commands(environment, tmp_path)


ASKS = """
[[answers]]
when = "^choose"
steps = [{ do = "call", name = "ask", arguments = { question = "Which colour?" } }]
[[answers]]
steps = [{ do = "expect", result = "a dark blue" }, { do = "say", text = "so be it" }]
[[answers]]
when = "^edit"
steps = [
    { do = "call", name = "write_file", arguments = { path = "a.py", content = "one\\ntwo\\n" } },
]
[[answers]]
steps = [
    { do = "call", name = "edit_file", arguments = { path = "a.py", old_text = "two", new_text = "2" } },
]
[[answers]]
steps = [{ do = "say", text = "edited it" }]
[[answers]]
when = "^Greet the people"
steps = [{ do = "say", text = "hello people" }]
"""  # noqa: E501 - as it stands in a script


def test_typing_answers_a_question_edits_are_coloured_and_own_commands_are_sent(
    chat: Open, tmp_path: Path
) -> None:
    place = tmp_path / ".config" / "bargein" / "commands"
    place.mkdir(parents=True)
    (place / "greet.md").write_text("Greet the people of $ARGUMENTS.")
    screen = chat("--mode", "full", script=ASKS)
    screen.wait_ready()
    screen.enter("choose")
    screen.wait_for("type your answer")
    screen.wait_status("type the answer and Enter")
    # A line that was begun before the question could be read is a message, not an answer.
    screen.wait_until(
        lambda: typed_late(screen, "a dark blue", "Enter answers: a dark blue"), "the answer"
    )
    screen.type("\r")
    screen.wait_for("so be it")
    screen.enter("edit")
    screen.wait_for("edited it")
    assert "│ - two" in screen.text
    assert "│ + 2" in screen.text
    screen.type("\x0f")
    screen.wait_for("\n  - two")
    screen.enter("/greet Rome")
    screen.wait_for("> Greet the people of Rome.")
    screen.wait_for("hello people")


class TestMentions:
    def test_a_file_that_is_there_goes_along(self, tmp_path: Path) -> None:
        (tmp_path / "a b.txt").write_text("spaced")
        (tmp_path / "src").mkdir()
        (tmp_path / "src" / "main.py").write_text("print()\n")
        (tmp_path / "pic.PNG").write_bytes(b"\x89PNG\0")
        text = 'look at @src/main.py, @"a b.txt" and @pic.PNG; not at me@src/main.py or @nobody'
        found = mentioned_files(text, tmp_path)
        assert [(each.name, each.media_type) for each in found] == [
            ("src/main.py", "text/plain"),
            ("a b.txt", "text/plain"),
            ("pic.PNG", "image/png"),
        ]
        assert found[0].data == b"print()\n"
        assert mentioned_files("@src @. @/ @~nobody @", tmp_path) == ()

    def test_what_cannot_be_sent_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "large.txt").write_text("x" * 300_000)
        (tmp_path / "binary").write_bytes(b"a\0b")
        for number in range(21):
            (tmp_path / f"f{number}").write_text("x")
        for text, why in (
            ("@large.txt", "larger than 256 KiB"),
            ("@binary", "neither text nor an image"),
            (" ".join(f"@f{number}" for number in range(21)), "more than 20 files"),
        ):
            with pytest.raises(UserError, match=why):
                mentioned_files(text, tmp_path)

    def test_the_pasted_path_of_an_image_is_a_mention(self, tmp_path: Path) -> None:
        picture = tmp_path / "my pic.png"
        picture.write_bytes(b"x")
        assert mention_of(f"'{picture}'\n") == f'@"{picture}"'
        assert mention_of(str(picture).replace(" ", "\\ ")) == f'@"{picture}"'
        assert mention_of(str(tmp_path / "other.png")) is None
        assert mention_of("some words") is None


class TestFileIndex:
    def test_git_leaves_out_what_it_ignores_and_runs_nothing_of_the_repository(
        self, tmp_path: Path
    ) -> None:
        def git(*words: str) -> None:
            subprocess.run(["git", *words], cwd=tmp_path, check=True, capture_output=True)

        (tmp_path / "src").mkdir()
        (tmp_path / "src" / "main.py").write_text("x")
        (tmp_path / "ignored.log").write_text("x")
        (tmp_path / ".gitignore").write_text("*.log\n")
        git("init", "-q")
        git("config", "core.fsmonitor", f"touch {tmp_path}/it-ran; false")
        assert sorted(list_files(tmp_path)) == [".gitignore", "src/main.py"]
        assert not (tmp_path / "it-ran").exists()

    def test_what_a_partial_clone_lacks_is_not_fetched_by_a_program_of_the_repository(
        self, tmp_path: Path
    ) -> None:
        folder = tmp_path / "work"

        def git(*words: str) -> str:
            words = ("-c", "user.name=a", "-c", "user.email=a@b", *words)
            done = subprocess.run(["git", *words], cwd=folder, check=True, capture_output=True)
            return done.stdout.decode().strip()

        for name in ("a/x", "b/y"):
            (folder / name).parent.mkdir(parents=True)
            (folder / name).write_text(name)
        git("init", "-q")
        git("add", ".")
        git("commit", "-qm", "both")
        git("sparse-checkout", "init", "--cone", "--sparse-index")
        git("sparse-checkout", "set", "a")
        lacking = git("rev-parse", "HEAD:b")
        (folder / ".git" / "objects" / lacking[:2] / lacking[2:]).unlink()
        for key, value in (
            ("core.repositoryFormatVersion", "1"),
            ("extensions.partialClone", "origin"),
            ("remote.origin.promisor", "true"),
            ("remote.origin.url", str(tmp_path)),
            ("remote.origin.uploadpack", f"touch {tmp_path}/it-ran; false"),
        ):
            git("config", key, value)
        list_files(folder)
        assert not (tmp_path / "it-ran").exists()

    def test_elsewhere_the_tree_is_walked(self, tmp_path: Path) -> None:
        for name in ("a.py", "sub/b.py", "node_modules/c.js", ".git/d"):
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text("x")
        assert list_files(tmp_path) == ["a.py", "sub/b.py"]

    def test_the_best_comes_first(self) -> None:
        names = ["docs/terminal.md", "src/cli/main.py", "src/main/other.py", "mammal/in.py"]
        assert matching("main", names, 10) == [
            "src/cli/main.py",
            "src/main/other.py",
            "mammal/in.py",
        ]
        assert matching("trml", names, 10) == ["docs/terminal.md"]
        assert matching("", names, 10) == []

    def test_it_is_read_again_only_when_it_is_old(self, tmp_path: Path) -> None:
        (tmp_path / "a.py").write_text("x")
        asked: list[FileIndex] = []
        index = FileIndex(tmp_path, asked.append)
        assert index.known() == ()
        assert index.known() == ()
        (one,) = asked
        one.read()
        assert list(index.known()) == ["a.py"]


class TestPlan:
    ITEMS = '{"items": [{"text": "look", "state": "done"}, {"text": "mend", "state": "doing"}]}'

    def test_the_list_is_read_from_the_last_call(self) -> None:
        assert [each.state for each in todo_of(self.ITEMS)] == ["done", "doing"]
        assert todo_of('{"items": [{"text": "x", "state": "never"}]}') == ()
        activity = Activity(lambda: 0.0)
        activity.picture.calls["c1"] = a_call("todo", self.ITEMS)
        activity.picture.calls["c2"] = a_call("todo", "[]", CallStatus.FAILED)
        assert [each.text for each in activity.todo] == ["look", "mend"]

    def test_what_a_sub_agent_is_doing(self) -> None:
        child = ShownChild("s/c.1", "t1", "c", "find it", 0.0)
        assert child_doing(child) == ""
        child.below = Picture("s/c.1")
        child.below.turn = child.below.turn_of("t1")
        assert child_doing(child) == "thinking"
        call = a_call("terminal", "{}")
        call.title, call.state = "make test", CallState.RUNNING
        child.below.calls["x"] = call
        assert child_doing(child) == "terminal make test"


PLANS = """
[[answers]]
when = "^plan"
steps = [
    { do = "call", name = "todo", arguments = { items = [{ text = "look around", state = "done" }, { text = "mend it", state = "doing" }] } },
]
[[answers]]
steps = [{ do = "say", text = "working on it" }, { do = "pause", seconds = 600 }]
[[answers]]
when = "^read"
steps = [{ do = "say", text = "I have read it" }]
"""  # noqa: E501 - as it stands in a script


def test_the_plan_is_shown_and_a_file_goes_along(chat: Open, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("remember the milk")
    screen = chat(script=PLANS)
    screen.wait_ready()
    screen.enter("plan it")
    screen.wait_for("✓ look around")
    screen.wait_for("mend it")
    screen.type("\x1b")
    screen.wait_for("stopped in")
    screen.enter("/todo")
    screen.wait_for("[>] mend it")
    screen.type("read @notes")
    screen.wait_for("notes.txt")
    screen.type(".txt \r")
    screen.wait_for("  with notes.txt")
    screen.wait_for("I have read it")
