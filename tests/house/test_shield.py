"""What a developer has set for their own use of the program does not reach the tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.conftest import is_the_developers

SET = {
    "BARGEIN_FOO": "1",
    "BARGEIN_MODEL": "openai:theirs",
    "BARGEIN_BUDGET_STEPS": "1",
    "OPENAI_API_KEY": "theirs",
    "OPENAI_BASE_URL": "http://theirs.invalid",
    "ANTHROPIC_API_KEY": "theirs",
    "ANTHROPIC_BASE_URL": "http://theirs.invalid",
    "OTEL_EXPORTER_OTLP_ENDPOINT": "http://theirs.invalid",
    "XDG_DATA_HOME": "/theirs",
    "NO_COLOR": "1",
    "FORCE_COLOR": "1",
    "PYTHON_COLORS": "1",
    "COLUMNS": "20",
    "LINES": "5",
}


def test_nothing_of_the_developers_is_seen() -> None:
    seen = {name: value for name, value in os.environ.items() if is_the_developers(name)}
    assert not seen
    # The user's own file of the program would be there. (The program makes the folder, and a
    # browser writes beside it.)
    assert not Path(os.environ["XDG_CONFIG_HOME"], "bargein", "config.toml").exists()


def test_nothing_of_it_is_seen_where_all_of_it_is_set(tmp_path: Path) -> None:
    own = tmp_path / "bargein" / "config.toml"
    own.parent.mkdir()
    own.write_text("nonsense = true")
    inner = "test_nothing_of_the_developers_is_seen"
    with_a_program = "tests/cli/test_arguments.py::test_a_search_that_finds_nothing_says_so"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider"),
            *(f"{__file__}::{inner}", with_a_program),
        ],
        env={**os.environ, **SET, "XDG_CONFIG_HOME": str(tmp_path)},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout
