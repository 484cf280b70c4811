"""What every test may ask for."""

from __future__ import annotations

import os
import random
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest

from tests import programs, tiers
from tests.tiers import Tier

if TYPE_CHECKING:
    from playwright.sync_api import Browser

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
    _choose_tier(config)
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


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A real browser, for one module: Playwright keeps the loop of its thread."""
    from playwright.sync_api import sync_playwright

    from tests.programs import find, node
    from tests.server.page_visit import FLAGS

    # The Node that Playwright brings needs a library that small systems lack.
    os.environ["PLAYWRIGHT_NODEJS_PATH"] = node()
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=find("chromium"), args=FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture(scope="module", params=list(BACKENDS))
def anyio_backend(request: pytest.FixtureRequest) -> Backend:
    """The event loops that `@pytest.mark.anyio` runs a test on: all three, unless it names some."""
    name: str = request.param
    return BACKENDS[name]


# --- which tests run ---

NEEDED_BY_FIXTURE = {"browser": "chromium"}
NOT_INSTALLED = "not installed:"
SEEDS = 1_000_000

TIER = pytest.StashKey[Tier]()
LEFT_OUT = pytest.StashKey[int]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("tiers", "which tests run (tests/tiers.py)")
    group.addoption(
        "--quick", action="store_true", help="only tests that start no program and take little time"
    )
    group.addoption("--all", action="store_true", help="every test, also of the long suites")
    group.addoption(
        "--seed", type=int, help="repeat the slice of the long suites that an earlier run printed"
    )
    group.addoption(
        "--need-programs",
        action="store_true",
        help="fail if a program that tests drive is not installed, instead of skipping its tests",
    )


def _choose_tier(config: pytest.Config) -> None:
    option = config.option
    if option.quick and option.all:
        raise pytest.UsageError("--quick and --all exclude each other")
    if option.quick:
        config.stash[TIER] = Tier.QUICK
    elif option.all or config.args_source is pytest.Config.ArgsSource.ARGS:
        config.stash[TIER] = Tier.ALL
    else:
        config.stash[TIER] = Tier.SLICE
    config.stash[LEFT_OUT] = 0
    if option.seed is None:
        # A worker of xdist uses the seed of the process that started it.
        given = getattr(config, "workerinput", {})
        option.seed = given.get("seed", random.randrange(SEEDS))
    if option.hypothesis_seed is None:
        hypothesis.core.global_force_seed = option.seed


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    node.workerinput["seed"] = node.config.option.seed


def pytest_report_header(config: pytest.Config) -> str:
    chosen = {
        Tier.QUICK: "quick tests only; ./dev test runs more",
        Tier.SLICE: "a slice of the long suites; ./dev test --all runs them whole",
        Tier.ALL: "every test that was named",
    }[config.stash[TIER]]
    return f"tier: {chosen}\nseed: {config.option.seed} (repeat with --seed {config.option.seed})"


def pytest_sessionstart(session: pytest.Session) -> None:
    absent = programs.missing()
    if absent and session.config.getoption("--need-programs"):
        names = ", ".join(absent)
        pytest.exit(f"needed and not installed: {names}. {programs.advice(absent)}", returncode=2)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    _leave_out(config, items)
    _skip_for_want_of_programs(items)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Does not even import what a quick run leaves out: imports take most of a minute."""
    is_left_out = config.stash[TIER] is Tier.QUICK and not tiers.is_quick(
        collection_path.relative_to(programs.ROOT).as_posix()
    )
    return True if is_left_out else None


def _leave_out(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.stash[TIER] is not Tier.SLICE:
        return
    names = [item.nodeid for item in items]
    left_out = tiers.left_out_of_slice(names, config.option.seed)
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid in left_out])
    items[:] = [item for item in items if item.nodeid not in left_out]
    config.stash[LEFT_OUT] = len(left_out)


def _skip_for_want_of_programs(items: list[pytest.Item]) -> None:
    absent = set(programs.missing())
    for item in items if absent else ():
        fixtures = getattr(item, "fixturenames", ())
        needed = {NEEDED_BY_FIXTURE[name] for name in fixtures if name in NEEDED_BY_FIXTURE}
        needed.update(*(mark.args for mark in item.iter_markers("needs")))
        for program in sorted(needed & absent):
            item.add_marker(pytest.mark.skip(reason=f"{NOT_INSTALLED} {program}"))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker of xdist reports how many tests it left out; all of them leave out the same."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["left_out"] = session.config.stash[LEFT_OUT]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Takes that report, in the process that started the workers."""
    output = getattr(node, "workeroutput", None) or {}
    node.config.stash[LEFT_OUT] = output.get("left_out", 0)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    _say_what_was_left_out(terminalreporter, config)
    absent = programs.missing()
    reports = terminalreporter.stats.get("skipped", [])
    skipped = sum(NOT_INSTALLED in str(report.longrepr) for report in reports)
    if skipped:
        terminalreporter.section("programs that are not installed", red=True, bold=True)
        terminalreporter.line(f"{skipped} tests did not run, for want of {', '.join(absent)}.")
        terminalreporter.line(f"To run them, {programs.advice(absent)}")


def _say_what_was_left_out(reporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    seed = config.option.seed
    match config.stash[TIER]:
        case Tier.QUICK:
            reporter.section("left out of a quick run")
            reporter.line(f"{', '.join(tiers.NOT_QUICK)}. ./dev test runs them too.")
        case Tier.SLICE:
            reporter.section("left out of this slice")
            reporter.line(
                f"{config.stash[LEFT_OUT]} tests of the long suites, by seed {seed}. "
                f"--seed {seed} repeats this slice, --all runs everything."
            )
        case Tier.ALL:
            pass
