"""`bargein doctor`: checks what works on this machine, and says what to do about the rest."""

import argparse
import socket
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

from msgspec.structs import replace

from bargein.cancel import CancelSource, run_thread
from bargein.cli.event_loop import run_in_loop
from bargein.errors import BargeinError
from bargein.runtime.config import Config
from bargein.runtime.data_directory import CHECKPOINTS, make_data_directory

if TYPE_CHECKING:
    from bargein.process import HidingReport, SandboxReport

REACH_S = 3.0


class Finding(NamedTuple):
    good: bool
    what: str
    detail: str
    todo: str = ""


def main(given: argparse.Namespace, config: Config) -> int:
    findings = run_in_loop(_look, config)
    for finding in findings:
        print(f"{'ok ' if finding.good else '!! '} {finding.what}: {finding.detail}")
        if finding.todo:
            print(f"    -> {finding.todo}")
    return 0 if all(finding.good for finding in findings) else 1


async def _look(config: Config) -> list[Finding]:
    checks: list[tuple[str, Callable[[Config], Awaitable[Finding]]]] = [
        ("containment", _containment),
        ("sandbox", _sandbox),
        ("commands", _commands),
        ("limits", _limits),
        ("model", _model),
        ("store", _store),
        ("owner", _owner),
        ("snapshots", _snapshots),
    ]
    findings = [Finding(True, "python", sys.version.split()[0])]
    for name, check in checks:
        try:
            findings.append(await check(config))
        except BargeinError as error:
            findings.append(Finding(False, name, str(error)))
        except OSError as error:
            findings.append(Finding(False, name, f"{error.filename}: {error.strerror or error}"))
    return findings


async def _owner(config: Config) -> Finding:
    """Who owns the data directory, and whether terminals can attach to it."""
    from bargein.runtime.data_directory import owner_listens
    from bargein.runtime.directory_lock import DirectoryInUse, DirectoryLock

    make_data_directory(config.home)
    try:
        DirectoryLock.take(config.home).release()
    except DirectoryInUse as error:
        who = str(error.owner or "another process")
        if owner_listens(config.home):
            return Finding(True, "owner", f"{who}; `bargein` attaches to it")
        todo = "end it, or set BARGEIN_HOME to another directory"
        return Finding(True, "owner", f"{who}, to which no terminal can attach", todo)
    return Finding(True, "owner", "nobody has the data directory now")


async def _containment(config: Config) -> Finding:
    from bargein.process import Means, open_containment

    async with await open_containment(means="auto", home=None) as containment:
        report = containment.report
    tried = "; ".join(f"{attempt}" for attempt in report.attempts)
    if report.means is Means.GROUP:
        todo = "on Linux, run inside a delegated cgroup or allow unprivileged subreapers"
        return Finding(False, "containment", f"{report.promise} (tried: {tried})", todo)
    return Finding(True, "containment", f"{report.means}: {report.promise}")


async def _sandbox(config: Config) -> Finding:
    from bargein.process import open_containment
    from bargein.runtime.hiding import NOTHING, hiding_without_workspace

    make_data_directory(config.home)
    on = bool(config["sandbox.hide_data"])
    hiding = hiding_without_workspace(config, config.home) if on else NOTHING
    async with await open_containment(hiding=hiding) as containment:
        report = containment.report.hiding
    if not on:
        todo = "set sandbox.hide_data = true, unless commands need sudo or have to mount"
        return Finding(
            False, "sandbox", describe_sandbox(replace(report, detail="it is off")), todo
        )
    if not report.works:
        todo = (
            "allow user namespaces (kernel.unprivileged_userns_clone, AppArmor, the container's "
            "seccomp profile), or run it on Linux"
        )
        return Finding(False, "sandbox", describe_sandbox(report), todo)
    return Finding(report.fenced, "sandbox", describe_sandbox(report))


async def _commands(config: Config) -> Finding:
    """Which sandbox the agent's commands would run in, and whether it is on."""
    from bargein.process import open_containment
    from bargein.runtime.hiding import hiding_without_workspace

    hiding = hiding_without_workspace(config, config.home)
    async with await open_containment(hiding=hiding, network="none") as containment:
        report = containment.report.sandbox
    is_on = _has_sandbox(config)
    if is_on and not report.holds:
        todo = (
            "allow namespaces (kernel.unprivileged_userns_clone, AppArmor, the container's seccomp "
            "profile); until then every command needs your approval"
        )
        return Finding(False, "commands", describe_commands(report), todo)
    state = "" if is_on else '; it is off: sandbox.commands = "on" turns it on'
    return Finding(True, "commands", f"{describe_commands(report)}{state}")


async def _limits(config: Config) -> Finding:
    """By which means the limits of commands are held, those that are set."""
    from bargein.process import CommandLimits, Network, open_containment
    from bargein.runtime.engine import command_limits_of

    limits = command_limits_of(config)
    if limits == CommandLimits():
        return Finding(True, "limits", "none is set for commands (limits.memory_megabytes ...)")
    network: Network | None = None if limits.tmp_bytes is None else "none"
    async with await open_containment(limits=limits, network=network) as containment:
        report = containment.report.limits
        tmp = "a tmpfs" if containment.report.sandbox.holds and _has_sandbox(config) else ""
    held = {"memory": report.memory, "processes": report.processes, "/tmp of the sandbox": tmp}
    wanted = {
        "memory": limits.memory_bytes,
        "processes": limits.processes,
        "/tmp of the sandbox": limits.tmp_bytes,
    }
    words = [
        f"{name} by {held[name] or 'nothing'}"
        for name, value in wanted.items()
        if value is not None
    ]
    if report.others:
        words.append("CPU time and file size by rlimit, for each process")
    good = all(held[name] for name, value in wanted.items() if value is not None)
    todo = ""
    if not good:
        todo = "run it where cgroups with the controllers memory and pids can be made"
        if limits.tmp_bytes is not None and not tmp:
            todo += ', and namespaces, with sandbox.commands = "on"'
    return Finding(good, "limits", ", ".join(words), todo)


def _has_sandbox(config: Config) -> bool:
    return "on" in (config["sandbox.commands"], config["sandbox.staged"])


def describe_commands(report: "SandboxReport") -> str:
    """Says what the sandbox of commands holds on this machine."""
    if report.holds:
        network = "the network" if report.network == "all" else "no network"
        return (
            "a sandbox by namespaces: commands write only to the workspace and a /tmp of their "
            f"own, see no secrets and no other processes, and have {network}"
        )
    if report.means:
        return (
            "a sandbox by Landlock and seccomp only: commands write only to the workspace, but "
            "git's hooks in it are not protected and processes outside are visible; namespaces "
            f"do not work here ({report.detail})"
        )
    return f"no sandbox works here ({report.detail}), so commands would need your approval"


def describe_sandbox(report: "HidingReport") -> str:
    """Says what commands can see of Bargein's own data on this machine."""
    if not report.works:
        return (
            f"commands can read and change the data directory ({report.detail}), so only the "
            "owner's terminal and pages that are signed in can approve calls"
        )
    if report.how == "user namespace":
        return (
            "commands do not see the data directory or your settings, and cannot look into "
            "processes outside (user namespace); sudo does not work in them"
        )
    if report.fenced:
        return (
            "commands do not see the data directory or your settings, cannot look into processes "
            "outside, and cannot mount (mount namespace, Landlock)"
        )
    return (
        "commands do not see the data directory or your settings (mount namespace), but as root "
        f"they can undo that: there is no Landlock here ({report.detail})"
    )


async def _model(config: Config) -> Finding:
    from bargein.models.choice import choose_name
    from bargein.models.local.endpoint import LocalEndpoint
    from bargein.models.local.errors import require_runtime
    from bargein.models.naming import resolve_model

    with CancelSource("doctor") as source:
        choice = await choose_name(config.models, source.token)
        model = resolve_model(choice.name, config.models)
        if any(isinstance(each, LocalEndpoint) for each in model.endpoints):
            require_runtime()
        unreached = [
            each for each in map(_address, model.endpoints) if each and not await _is_reached(each)
        ]
    found = f"{_bare(choice.name)} ({choice.why})"
    if unreached:
        addresses = ", ".join(f"{host}:{port}" for host, port in unreached)
        todo = "check the network, HTTPS_PROXY and the address, or choose another with --model"
        return Finding(False, "model", f"{found}, but {addresses} does not answer", todo)
    todo = "set OPENAI_API_KEY or ANTHROPIC_API_KEY, or start Ollama, for a capable one"
    return Finding(True, "model", found, todo if choice.name == "local" else "")


def _address(endpoint: object) -> tuple[str, int] | None:
    """Returns the proxy or host of an endpoint; None if the model runs on this machine."""
    from bargein.models.http_endpoint import HttpEndpoint

    if not isinstance(endpoint, HttpEndpoint):
        return None
    parts = urlsplit(endpoint.proxy or endpoint.base_url)
    return parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)


async def _is_reached(address: tuple[str, int]) -> bool:
    """Connects in a thread that may be abandoned: a name lookup can take forever."""

    def connect() -> None:
        socket.create_connection(address, timeout=REACH_S).close()

    with CancelSource("doctor", timeout_s=REACH_S) as source:
        outcome = await run_thread(connect, token=source.token, grace_s=0.1, name="reach")
    return outcome.status == "finished"


def _bare(name: str) -> str:
    """Returns a model's name without its address, which may contain a password."""
    return name.partition("@")[0]


async def _store(config: Config) -> Finding:
    from bargein import stores

    address = config.store_address
    is_file = isinstance(address, Path)
    shown = stores.shown(address)
    try:
        make_data_directory(config.home)
        store = await (stores.open(address) if is_file else stores.look(address))
        try:
            count = len(await store.sessions(limit=1000))
            promised = await stores.promises(store)
        finally:
            await store.aclose()
    except BargeinError as error:
        # The error itself says what to do about the file.
        todo = "meanwhile, BARGEIN_HOME=ANOTHER_DIRECTORY starts with an empty store"
        return Finding(False, "store", str(error), todo if is_file else "")
    told = f"{shown}, {count} session{'s' * (count != 1)}{promised and f'; {promised}'}"
    return Finding(True, "store", told)


async def _snapshots(config: Config) -> Finding:
    import shutil

    from bargein.checkpoints.retention import held_in

    if not config["checkpoints.enabled"]:
        return Finding(True, "snapshots", "off: an undo puts no files back")
    if shutil.which("git") is None:
        todo = "install git, so that an undo can put files back"
        return Finding(False, "snapshots", "there is no git", todo)
    try:
        held = list(held_in(config.home / CHECKPOINTS))
    except OSError as error:
        place = config.home / CHECKPOINTS
        return Finding(False, "snapshots", f"{place} cannot be read: {error.strerror}")
    if not held:
        return Finding(True, "snapshots", "none are held")
    size = sum(each.bytes for each in held) / (1 << 20)
    count = sum(each.snapshots for each in held)
    words = f"{count} of {len(held)} workspace{'s' * (len(held) != 1)}, {size:.1f} MiB"
    return Finding(True, "snapshots", f"{words}, in {config.home / CHECKPOINTS}")
