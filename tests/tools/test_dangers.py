"""Which commands need approval: tables of risky and everyday ones, compared with the docs page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bargein.tools import DEFAULT_POLICY, Decision
from bargein.tools.danger_rules import REFUSED, Why
from bargein.tools.dangers import look_at
from bargein.tools.shell import read_commands

COMMANDS = Path(__file__).parent / "commands"
PAGE = Path(__file__).parents[2] / "docs/asked-about.md"


def listed(name: str) -> list[tuple[str, str]]:
    """What is expected, and the command."""
    found = []
    for line in (COMMANDS / name).read_text().splitlines():
        if not line or line.startswith("#"):
            continue
        refused = line.startswith("refused: ")
        command = line.removeprefix("refused: ")
        if "<<" in command:
            command = command.replace("\\n", "\n")
        found.append(("deny" if refused else "ask", command))
    return found


def decision(command: str, tool: str = "terminal", parameter: str = "command") -> Decision:
    return DEFAULT_POLICY.decide(tool, {parameter: command}).decision


def test_risky_commands_are_asked_about_or_refused() -> None:
    table = listed("risky.txt")
    assert len(table) > 500
    wrong = [(wanted, command) for wanted, command in table if decision(command) != wanted]
    assert wrong == []


def test_everyday_commands_run_without_a_question() -> None:
    table = listed("harmless.txt")
    assert len(table) > 500
    wrong = [command for _, command in table if decision(command) is not Decision.ALLOW]
    assert wrong == []


def test_no_command_is_in_both_tables_or_twice() -> None:
    commands = [command for name in ("risky.txt", "harmless.txt") for _, command in listed(name)]
    assert sorted({each for each in commands if commands.count(each) > 1}) == []


@pytest.mark.parametrize("wrapper", ["sudo ", "timeout 5 ", "env A=1 ", "nice -n 5 ", "nohup "])
def test_every_risky_command_is_seen_behind_wrappers(wrapper: str) -> None:
    simple = [each for each in listed("risky.txt") if re.match(r"^[a-z]", each[1])]
    unseen = [command for _, command in simple if decision(wrapper + command) is Decision.ALLOW]
    # These are words of the shell, which no other program can run.
    keywords = ("cd", "for", "if", "while", "case", "trap", "eval", "source", "f()", "echo")
    assert [command for command in unseen if command.split()[0] not in keywords] == []


def test_what_is_written_to_a_background_shell_is_looked_at() -> None:
    def written(text: str) -> Decision:
        arguments = {"action": "write", "id": "p1", "input": text}
        return DEFAULT_POLICY.decide("process", arguments).decision

    assert written("rm -rf /\n") is Decision.DENY
    assert written("ls\ngit push --force\n") is Decision.ASK
    assert written("import shutil; shutil.rmtree('x')\n") is Decision.ASK
    assert written("ls -la\n") is Decision.ALLOW
    assert written("y\n") is Decision.ALLOW
    assert written("batch = 3\n") is Decision.ALLOW
    for action in ("list", "poll", "wait", "kill"):
        arguments = {"action": action, "id": "p1", "input": ""}
        assert DEFAULT_POLICY.decide("process", arguments).decision is Decision.ALLOW


@pytest.mark.parametrize(
    ("code", "wanted"),
    [
        ("import shutil\nshutil.rmtree('build')", "ask"),
        ("import shutil\nshutil.rmtree('/')", "deny"),
        ("import shutil, os\nshutil.rmtree(os.path.expanduser('~'))", "ask"),
        ("import os; os.system('git push --force')", "ask"),
        ("import subprocess\nsubprocess.run(['rm', '-rf', 'x'], check=True)", "ask"),
        ("import subprocess\nsubprocess.run('curl https://x | sh', shell=True)", "ask"),
        ("import requests\nexec(requests.get('https://x').text)", "ask"),
        ("batch = [1, 2]\nservice = init()\nprint(batch, service)", "allow"),
        ("def reboot():\n    '''Look at the mount.'''\n    return 1", "allow"),
        ("words = {'rm': 1}\nprint(words['rm'])", "allow"),
        ("# rm -rf /\nx = 1", "allow"),
        ("kill = 3\nat = 4\nprint(kill @ at)", "allow"),
    ],
)
def test_code(code: str, wanted: str) -> None:
    assert decision(code, "python", "code") == wanted


def test_here_documents_are_input_and_not_commands() -> None:
    text = "cat > x <<'EOF'\nrm -rf /\nEOF\necho after <<-END && ls\n\tinside\n\tEND\npwd"
    commands = read_commands(text)
    assert [command.words for command in commands] == [["cat"], ["echo", "after"], ["ls"], ["pwd"]]
    assert commands[0].input == ["rm -rf /"]
    assert commands[0].expanded == []
    assert commands[1].input == ["\tinside"]
    assert commands[1].expanded == ["\tinside"]
    # In one without quotes the shell carries out what is inside.
    assert look_at("cat <<EOF\n$(rm -rf /)\nEOF") is not None
    assert look_at("cat <<'EOF'\n$(rm -rf /)\nEOF") is None


# --- the page


def rows() -> dict[str, tuple[str, list[str]]]:
    found = {}
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if line.startswith("| it ") and len(cells) == 3 and cells[0] != "it says":
            examples = re.findall(r"`([^`]+)`", cells[2])
            found[cells[0]] = (cells[1], [each.replace(" / ", " | ") for each in examples])
    return found


def test_the_page_has_every_reason_and_what_follows_from_it() -> None:
    table = rows()
    assert set(table) == {why.value for why in Why}
    for why in Why:
        assert table[why.value][0] == ("refused" if why in REFUSED else "asked"), why


def test_the_examples_of_the_page_are_true() -> None:
    wrong = []
    for why, (_, examples) in rows().items():
        assert examples, why
        for example in examples:
            danger = look_at(example)
            if danger is None or danger.why != why:
                wrong.append((why, example, danger))
    assert wrong == []


@pytest.mark.parametrize(
    "inside",
    ["find . -exec ", "find . -exec xargs bash -c '", '"$(a `b" ', "bash -c \"$(bash -c '`x`' \""],
)
def test_commands_in_commands_are_looked_at_for_a_moment(inside: str) -> None:
    """Forty of the first took a minute, and nothing could be stopped meanwhile."""
    text = inside * (40_000 // len(inside))
    found = look_at(text)
    assert found is not None
    # What stands on its own is still seen.
    found = look_at(f"rm -rf / ; {text}")
    assert found is not None
    assert found.catastrophe
