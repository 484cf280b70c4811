"""A network of its own for a run: each node has a network namespace, so that the kernel loses what
one sends to another.

    python -m bargein.testing.chaos.run   starts itself again inside (`enter`), for root on Linux
    Network.open()                        makes a bridge there; the database is behind it
    await network.add_host(number)        a namespace with an address on it

Packets are lost in one direction: the sender's neighbour table names a hardware address that nobody
has. Nothing refuses, nothing answers, and what was lost is sent again when the way is whole. Where
none of this is possible all nodes are on loopback, and those faults are left out.
"""

import asyncio
import os
import shutil
import subprocess
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process

NEEDED = ("unshare", "nsenter", "ip", "mount")
INSIDE = "--inside"
DATABASE_HOST = "192.0.2.1"
NOBODY_HAS = "02:00:00:00:00:fe"


def enter(arguments: list[str]) -> None:
    """Start this program again in namespaces of its own. Returns if that is not possible here."""
    if os.geteuid() != 0 or not all(shutil.which(program) for program in NEEDED):
        return
    into = ["unshare", "--net", "--mount", "--propagation", "private"]
    if subprocess.run([*into, "true"], check=False, capture_output=True).returncode != 0:
        return
    again = [sys.executable, "-m", "bargein.testing.chaos.run", INSIDE]
    os.execvp("unshare", [*into, *again, *arguments])


class Host:
    """One network namespace with an address."""

    def __init__(self, number: int, holder: Process | None) -> None:
        self.address = f"192.0.2.{11 + number}"
        self._holder = holder

    def command(self, *command: str) -> list[str]:
        """What runs a command on this host."""
        if self._holder is None:
            return list(command)
        return ["nsenter", "--net", "-t", str(self._holder.pid), *command]

    async def lose(self, towards: str) -> None:
        """What this host sends there does not arrive, from now on."""
        await _run(*self.command(*_neighbour("replace", towards)))

    async def heal(self, towards: str) -> None:
        await _run(*self.command(*_neighbour("del", towards)))


class Network:
    """Closing ends the namespaces. `is_real` is False where all hosts are this machine."""

    def __init__(self, *, is_real: bool) -> None:
        self.is_real = is_real
        self.database_host = DATABASE_HOST if is_real else "127.0.0.1"
        self._holders: list[Process] = []

    @classmethod
    async def open(cls, *, is_real: bool) -> "Network":
        if is_real:
            await _run("ip", "link", "set", "lo", "up")
            await _run("ip", "link", "add", "nodes", "type", "bridge")
            await _run("ip", "addr", "add", f"{DATABASE_HOST}/24", "dev", "nodes")
            await _run("ip", "link", "set", "nodes", "up")
        return cls(is_real=is_real)

    async def add_host(self, number: int) -> Host:
        if not self.is_real:
            return Host(number, None)
        # It holds the namespace until its input ends, which is when we do.
        holder = await asyncio.create_subprocess_exec(
            "unshare", "--net", "sh", "-c", "echo here; cat", stdin=PIPE, stdout=PIPE
        )
        self._holders.append(holder)
        assert holder.stdout is not None
        await holder.stdout.readline()
        host, link = Host(number, holder), f"node{number}"
        peer = ["peer", "name", "eth0", "netns", str(holder.pid)]
        await _run("ip", "link", "add", link, "type", "veth", *peer)
        await _run("ip", "link", "set", link, "master", "nodes", "up")
        for does in (
            ("addr", "add", f"{host.address}/24", "dev", "eth0"),
            ("link", "set", "eth0", "up"),
            ("link", "set", "lo", "up"),
        ):
            await _run(*host.command("ip", *does))
        return host

    async def lose(self, towards: str) -> None:
        """What the database sends to this host does not arrive, from now on."""
        await _run(*_neighbour("replace", towards, device="nodes"))

    async def heal(self, towards: str) -> None:
        await _run(*_neighbour("del", towards, device="nodes"))

    async def aclose(self) -> None:
        for holder in self._holders:
            assert holder.stdin is not None
            holder.stdin.close()
            await holder.wait()


def _neighbour(change: str, towards: str, device: str = "eth0") -> list[str]:
    rest = ["lladdr", NOBODY_HAS, "nud", "permanent"] if change == "replace" else []
    return ["ip", "neigh", change, towards, *rest, "dev", device]


async def _run(*command: str) -> None:
    process = await asyncio.create_subprocess_exec(
        *command, stdin=DEVNULL, stdout=PIPE, stderr=asyncio.subprocess.STDOUT
    )
    said, _ = await process.communicate()
    if process.returncode != 0:
        raise OSError(f"{' '.join(command)}: {said.decode(errors='replace').strip()}")
