"""What the pages show can be done: programs run, commands and flags exist, settings are known.

Programs are run as they stand, with a scripted model and, where they name one of OpenAI's, with a
server on this machine in its place. Pieces that wait for something at their top level are only
looked at: they must be Python, and what they import must be there. The design is a map and is left
out.
"""

from __future__ import annotations

import ast
import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from bargein.cli.arguments import COMMANDS, command_line
from bargein.models import ScriptedModel
from bargein.runtime.config import read_file
from bargein.testing.fault_server import FaultServer, serve_in_thread
from bargein.testing.fault_zoo import whole
from tests.models.local.files import HEAD
from tests.server.program import Program

pytestmark = pytest.mark.timeout(240)

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
PAGES = sorted(
    page
    for page in [
        README,
        *(ROOT / "docs").glob("*.md"),
        *(ROOT / "docs/how-to").glob("*.md"),
        ROOT / "deploy" / "README.md",
    ]
    if page.name != "design.md"
)
TOP_LEVEL_AWAIT = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
LOCAL_SERVER = "http://127.0.0.1:8484"
SCRIPT = """
repeat = true
[[answers]]
when = "haiku|ten"
steps = [{ do = "say", text = "An old silent pond" }]
[[answers]]
when = "Eiffel"
steps = [{ do = "say", text = '{"name": "Paris", "people": 2100000}' }]
[[answers]]
when = "(?s)^(?!.*(haiku|ten|Eiffel))"
steps = [{ do = "say", text = "one " }, { do = "pause", seconds = 600 }]
"""


@dataclass(frozen=True, slots=True)
class Snippet:
    page: Path
    line: int
    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def snippets(*kinds: str) -> list[Snippet]:
    return [snippet for page in PAGES for snippet in fenced(page) if snippet.kind in kinds]


def fenced(page: Path) -> Iterator[Snippet]:
    text = page.read_text()
    for found in re.finditer(r"^```(\w*)\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE):
        line = text.count("\n", 0, found.start()) + 1
        yield Snippet(page, line, found[1], found[2])


def waits_at_its_top_level(code: str) -> bool:
    # Whether it does is the compiler's to say: 0x80 marks what became a coroutine.
    return bool(compile(code, "snippet", "exec", TOP_LEVEL_AWAIT).co_flags & 0x80)


def is_program(snippet: Snippet) -> bool:
    return ".run(main)" in snippet.text or ".run(main())" in snippet.text


def needs_server(snippet: Snippet) -> bool:
    return LOCAL_SERVER in snippet.text


PYTHON = snippets("python")
PROGRAMS = [each for each in PYTHON if is_program(each)]
PIECES = [each for each in PYTHON if not is_program(each) and not needs_server(each)]


def run(code: str, home: Path, **more: str) -> str:
    (home / "script.toml").write_text(SCRIPT)
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "BARGEIN_HOME": str(home / "data"),
        "BARGEIN_CHAT_HOST": "0",
        "BARGEIN_MODEL": f"scripted:{home / 'script.toml'}",
        **more,
    }
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env=environment,
        cwd=home,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("snippet", PROGRAMS, ids=str)
def test_programs_run_as_they_stand(snippet: Snippet, tmp_path: Path) -> None:
    with serve_in_thread(FaultServer([whole("openai")])) as server:
        told = run(snippet.text, tmp_path, OPENAI_BASE_URL=f"{server.url}/v1", OPENAI_API_KEY="any")
    assert told.strip()


def test_the_first_program_of_the_readme_stops_and_redirects(tmp_path: Path) -> None:
    first, second = run(PROGRAMS[0].text, tmp_path).splitlines()
    assert PROGRAMS[0].page == README
    assert first.startswith("stopped ")
    assert second == "An old silent pond"


@pytest.mark.parametrize("snippet", PIECES, ids=str)
def test_pieces_are_python_and_import_what_is_there(
    snippet: Snippet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "some.gguf").write_bytes(HEAD)
    code = snippet.text
    if waits_at_its_top_level(code):
        tree = compile(code, "snippet", "exec", TOP_LEVEL_AWAIT | ast.PyCF_ONLY_AST)
        assert isinstance(tree, ast.Module)
        kept: list[ast.stmt] = [
            node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)
        ]
        code = ast.unparse(ast.Module(kept, []))
    exec(compile(code, str(snippet), "exec"), {"__name__": "snippet"})


@pytest.mark.needs("curl")
def test_the_server_of_the_readme_is_spoken_to_as_it_says(tmp_path: Path) -> None:
    (shell,) = [each for each in snippets("sh") if needs_server(each)]
    (python,) = [each for each in PYTHON if needs_server(each)]
    with Program(tmp_path, SCRIPT) as program:
        token = program.headers["authorization"].removeprefix("Bearer ")
        script = shell.text.replace(LOCAL_SERVER, program.url)
        # The reader fills it in, as the line says.
        assert script.count("TOKEN=...") == 1
        script = script.replace("TOKEN=...", f"TOKEN={token}")
        done = subprocess.run(
            ["sh", "-eu", "-c", script],
            env={"PATH": os.environ["PATH"]},
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )
        answer = run(python.text.replace(LOCAL_SERVER, program.url), tmp_path, TOKEN=token)
    assert done.returncode == 0, done.stderr
    begun, redirected, receipt = done.stdout.splitlines()
    assert '"disposition":"started"' in begun
    assert '"disposition":"interrupting"' in redirected
    assert '"status":"' in receipt
    assert answer == "An old silent pond"


# Commands


def commands(page: Path) -> Iterator[str]:
    """What is written after `bargein` or `./dev`, in blocks and in the text."""
    prose = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    written = re.findall(r"`((?:bargein|\./dev) [^`]+)`", prose)
    for snippet in fenced(page):
        if snippet.kind in ("", "sh", "console"):
            written += [line.removeprefix("$ ") for line in snippet.text.splitlines()]
    for line in written:
        found = re.match(
            r"(?:[A-Z_]+=\S+ )*(bargein|\./dev)\b(?: (?! )([^#]*?))?(?:  |#|&|$)", line
        )
        if found:
            yield f"{found[1]} {found[2] or ''}".strip()


@cache
def help_of(*path: str) -> str:
    told = io.StringIO()
    with contextlib.redirect_stdout(told), contextlib.suppress(SystemExit):
        command_line().parse_args([*path, "--help"])
    return told.getvalue()


@cache
def commands_of_dev() -> frozenset[str]:
    done = subprocess.run(["sh", ROOT / "dev", "help"], capture_output=True, text=True, check=True)
    return frozenset(re.findall(r"^  ([a-z]+)", done.stdout, flags=re.MULTILINE))


def faults(line: str) -> Iterator[str]:
    program, *words = shlex.split(line)
    own = program == "./dev" and words[:1] and words[0] not in COMMANDS
    if own:
        if words[0] not in commands_of_dev() and not words[0].startswith("-"):
            yield f"{line}: ./dev has no {words[0]}"
        elif (
            words[0] == "bench" and len(words) > 1 and not (ROOT / f"bench/{words[1]}.py").exists()
        ):
            yield f"{line}: there is no bench {words[1]}"
        return
    path: list[str] = []
    for word in words:
        name = word.partition("=")[0]
        if word.startswith("-"):
            if not re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", help_of(*path)):
                yield f"{line}: {' '.join(path) or 'bargein'} has no {name}"
        elif re.fullmatch(r"[a-z]+", word) and len(path) < 2:
            if not path and word not in COMMANDS:
                yield f"{line}: there is no command {word}"
                return
            if not path or re.search(rf"^    {word}\b", help_of(*path), flags=re.MULTILINE):
                path.append(word)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_and_flags_exist(page: Path) -> None:
    assert [fault for line in commands(page) for fault in faults(line)] == []


def test_commands_are_found_and_faults_told(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "`bargein chat --plain`, `bargein dance` and `./dev bench nothing`\n"
        "```sh\n$ bargein serve --port 1      as it is\nA=1 ./dev lock  # yes\nls\n"
        "bargein token add root --admn   no\n```\n"
    )
    assert list(commands(page)) == [
        "bargein chat --plain",
        "bargein dance",
        "./dev bench nothing",
        "bargein serve --port 1",
        "./dev lock",
        "bargein token add root --admn",
    ]
    assert [fault for line in commands(page) for fault in faults(line)] == [
        "bargein dance: there is no command dance",
        "./dev bench nothing: there is no bench nothing",
        "bargein token add root --admn: token add has no --admn",
    ]


def test_extras_exist() -> None:
    made = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for page in PAGES:
        for names in re.findall(r"'(?:bargein|\.)\[([\w,]+)\]'", page.read_text()):
            assert set(names.split(",")) <= set(made), page


@pytest.mark.parametrize("snippet", snippets("toml"), ids=str)
def test_settings_and_scripts_are_known(snippet: Snippet, tmp_path: Path) -> None:
    file = tmp_path / "bargein.toml"
    file.write_text(snippet.text)
    if "[[answers]]" in snippet.text:
        ScriptedModel.from_file(file)
    else:
        read_file(file, own="bargein/config.toml" in snippet.text)
