"""Rules of the house that no linter knows."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
BROAD = {"Exception", "BaseException"}


def test_a_broad_handler_raises_again_or_says_which_boundary_it_guards() -> None:
    offenders = [
        f"{path.relative_to(ROOT)}:{handler.lineno}"
        for path in SOURCES
        for handler in broad_handlers(path)
    ]
    assert offenders == [], "mark them `# boundary: why`, or let them raise"


def broad_handlers(path: Path) -> Iterator[ast.ExceptHandler]:
    text = path.read_text()
    lines = text.splitlines()
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.ExceptHandler) or not is_broad(node.type):
            continue
        # The formatter may have folded a long line: the mark is where the handler's head ends.
        head = lines[node.lineno - 2 : node.body[0].lineno]
        marked = any("# boundary: " in line for line in head)
        if not marked and not any(isinstance(part, ast.Raise) for part in ast.walk(node)):
            yield node


def is_broad(kind: ast.expr | None) -> bool:
    if kind is None:
        return True
    if isinstance(kind, ast.Tuple):
        return any(is_broad(one) for one in kind.elts)
    return isinstance(kind, ast.Name) and kind.id in BROAD


def test_handlers_are_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "example.py"
    path.write_text(
        "try: pass\n"
        "except Exception: pass\n"
        "except (ValueError, BaseException): pass\n"
        "except: pass\n"
        "except ValueError: pass\n"
        "except Exception: raise\n"
        "except Exception: pass  # boundary: a callback is a stranger's code\n"
    )
    assert [handler.lineno for handler in broad_handlers(path)] == [2, 3, 4]


ENVIRONMENT_READERS = {
    "cli/chat/file_index.py": "gives git our environment, with fetching switched off",
    "checkpoints/keeper.py": "gives the process of the snapshots a path to git",
    "checkpoints/repository.py": "gives git its path and the home with the user's ignore rules",
    "runtime/config.py": "the configuration",
    "models/local/options.py": "a local model that is made without a configuration",
    "process/fork_hooks.py": "gives a child process our environment, as Python itself would",
    "process/helper_process.py": "passes one variable on to the helper",
    "testing/chaos/node_process.py": "gives a node the environment of who breaks it",
    "testing/chaos/pooler.py": "looks for PgBouncer where Debian puts it",
    "sandbox/keyholder.py": "removes secrets from the environment",
}


def test_only_the_configuration_reads_the_environment() -> None:
    """The others read none of our settings; each says why it touches the environment."""
    readers = {
        str(path.relative_to(ROOT / "src" / "bargein"))
        for path in SOURCES
        if reads_environment(path)
    }
    assert readers - set(ENVIRONMENT_READERS) == set(), "let bargein.runtime.config read it"


def reads_environment(path: Path) -> bool:
    return any(is_environment(node) for node in ast.walk(ast.parse(path.read_text())))


def is_environment(node: ast.AST) -> bool:
    names = {"environ", "environb", "getenv", "getenvb"}
    if isinstance(node, ast.ImportFrom):
        return node.module == "os" and any(alias.name in names for alias in node.names)
    return (
        isinstance(node, ast.Attribute)
        and node.attr in names
        and isinstance(node.value, ast.Name)
        and node.value.id == "os"
    )


def test_readers_of_the_environment_are_found(tmp_path: Path) -> None:
    path = tmp_path / "example.py"
    for text in (
        "import os\nos.environ['A']",
        "import os\nos.getenv('A')",
        "from os import environ",
    ):
        path.write_text(text)
        assert reads_environment(path)
    path.write_text("import os\nos.path.exists(config.environ)")
    assert not reads_environment(path)
