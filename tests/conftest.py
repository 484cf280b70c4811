"""What every test may ask for."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile

import hypothesis
import pytest

from tests import programs

Backend = tuple[str, dict[str, bool]]

BACKENDS: dict[str, Backend] = {
    "asyncio": ("asyncio", {"use_uvloop": False}),
    "uvloop": ("asyncio", {"use_uvloop": True}),
    "trio": ("trio", {}),
}


# Cores are shared with others: how long something takes says nothing.
hypothesis.settings.register_profile(
    "busy machine", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("busy machine")


# What changes what the program does or how it writes. Caches and proxies stay theirs: some tests
# fetch the weights of a model, or start a browser.
_PREFIXES = ("BARGEIN_", "OPENAI_", "ANTHROPIC_", "OTEL_")
_NAMES = ("XDG_DATA_HOME", "NO_COLOR", "FORCE_COLOR", "PYTHON_COLORS", "COLUMNS", "LINES")


def is_the_developers(name: str) -> bool:
    """Whether a variable is set for the developer's own use of the program, and not for tests."""
    return name.startswith(_PREFIXES) or name in _NAMES


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Last of all, so that pytest itself writes as the developer wants it."""
    _hear_signals()
    for name in [name for name in os.environ if is_the_developers(name)]:
        del os.environ[name]
    # The user's own file is looked for here.
    empty = tempfile.mkdtemp(prefix="bargein-tests-")
    os.environ["XDG_CONFIG_HOME"] = empty
    config.add_cleanup(lambda: shutil.rmtree(empty, ignore_errors=True))


def _hear_signals() -> None:
    """Hear the signals that tests send, also when we were started in the background or by nohup:
    there they are ignored from birth, and every process we start would inherit that."""
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_IGN:
            ours = signal.default_int_handler if number is signal.SIGINT else signal.SIG_DFL
            signal.signal(number, ours)


@pytest.fixture(scope="module", params=list(BACKENDS))
def anyio_backend(request: pytest.FixtureRequest) -> Backend:
    """The event loops that `@pytest.mark.anyio` runs a test on: all three, unless it names some."""
    name: str = request.param
    return BACKENDS[name]


# --- programs that are not there ---

NEEDED_BY_FIXTURE = {"browser": "chromium"}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--need-programs",
        action="store_true",
        help="fail if a program that tests drive is not installed, instead of skipping its tests",
    )


def pytest_sessionstart(session: pytest.Session) -> None:
    absent = programs.missing()
    if absent and session.config.getoption("--need-programs"):
        names = ", ".join(absent)
        pytest.exit(f"needed and not installed: {names}. {programs.advice(absent)}", returncode=2)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    absent = set(programs.missing())
    for item in items if absent else ():
        fixtures = getattr(item, "fixturenames", ())
        needed = {NEEDED_BY_FIXTURE[name] for name in fixtures if name in NEEDED_BY_FIXTURE}
        needed.update(*(mark.args for mark in item.iter_markers("needs")))
        for program in sorted(needed & absent):
            item.add_marker(pytest.mark.skip(reason=f"{NOT_HERE} {program}"))


NOT_HERE = "not installed:"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    absent = programs.missing()
    reports = terminalreporter.stats.get("skipped", [])
    skipped = sum(NOT_HERE in str(report.longrepr) for report in reports)
    if skipped:
        terminalreporter.section("programs that are not installed", red=True, bold=True)
        terminalreporter.line(f"{skipped} tests did not run, for want of {', '.join(absent)}.")
        terminalreporter.line(f"To run them, {programs.advice(absent)}")
