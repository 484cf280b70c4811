"""Known ways out of a sandbox. Run as a program: tries them all, and prints what got out as JSON.

python -m tests.sandbox.escapes CONTAINMENT SANDBOX FOLDER

SANDBOX is a means, or `off:NAME;NAME...` to try these without any. Each is a command that prints the mark, or changes something outside, if it gets out. FOLDER is
empty, and neither in /tmp nor in a workspace: what is there is outside of the sandbox.
"""

# ruff: noqa: E501  (a command is easier to read in one line)

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import pty
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from bargein.cancel import CancelSource
from bargein.process import MeansChoice, SandboxChoice, open_containment
from bargein.sandbox.command_sandbox import CommandSandbox

MARK = "MARMALADE"
# In commands the mark is written so that its own text is not in the output by accident.
SAY = 'echo "MARMA""LADE"'
# One that an ordinary user can run, too: ours may be in a folder of root's.
PYTHON = next(path for path in ("/usr/bin/python3", sys.executable) if os.access(path, os.X_OK))
PRINT = "print('MARMA' 'LADE')"


class Escape(NamedTuple):
    """`landlock`: whether Landlock and seccomp alone refuse it, too."""

    name: str
    command: str
    landlock: bool = True


def _py(code: str) -> str:
    return f"{PYTHON} -I -S -c '{code}'".replace("PRINT", PRINT.replace("'", '"'))


_CALL = "import ctypes; call = ctypes.CDLL(None, use_errno=True).syscall; call.restype = ctypes.c_long; "


def _syscall(arguments: str) -> str:
    return _py(f"{_CALL}call({arguments}) >= 0 and PRINT")


def _connect(where: str) -> str:
    return _py(f"import socket; s = {where}; s.settimeout(1); print(s.recv(99).decode())")


# A repository whose configuration runs a program, which writes outside.
EVIL = (
    "mkdir evil; git -C evil init -q; git -C evil -c user.name=x -c user.email=x@y commit -q --allow-empty -m x; "
    "git -C evil config core.fsmonitor 'touch {out}/planted; false'; "
)
LINK = "git update-index --add --cacheinfo 160000,$(git -C evil rev-parse HEAD),evil"

ESCAPES = (
    # --- files
    Escape("write outside", "echo x > {out}/planted"),
    Escape("write through `..`", "echo x > ../planted"),
    Escape("write through a symbolic link", "ln -s {out}/planted l1; echo x > l1"),
    Escape("write through a linked folder", "ln -s {out} l2; echo x > l2/planted"),
    Escape("write through a hard link", "ln {out}/victim l3 && echo x > l3"),
    Escape("write through /proc/self/root", "echo x > /proc/self/root{out}/planted"),
    Escape("write through /proc/self/cwd", "echo x > /proc/self/cwd/../planted"),
    Escape("delete a file outside", "rm -f {out}/victim"),
    Escape("truncate a file outside", ": > {out}/victim"),
    Escape("change a mode outside", "chmod 777 {out}/victim", landlock=False),
    Escape("change times outside", "touch -d 2001-01-01 {out}/victim", landlock=False),
    Escape("change an owner outside", "chown 12345 {out}/victim", landlock=False),
    Escape("move the workspace away", "cd /; mv {ws} {ws}-moved"),
    Escape("move the folder above away", "cd /; mv {out} {out}-moved; mv {out}-moved {out} && " + SAY),
    Escape(
        "race of links",
        _py(
            "import os, threading, time; end = time.time() + 0.15; os.mkdir(\"r\")\n"
            "def flip():\n"
            "  while time.time() < end:\n"
            "    for to in (\"r\", \"{out}\"):\n"
            "      os.symlink(to, \"l4new\"); os.rename(\"l4new\", \"l4\")\n"
            "threading.Thread(target=flip).start()\n"
            "while time.time() < end:\n"
            "  try: open(\"l4/planted\", \"w\").close()\n"
            "  except OSError: pass"
        ),
    ),
    Escape("see files of others in /tmp", "cat {tmp}/secret /tmp/*/secret"),
    Escape("leave files to others in /tmp", "echo x > {tmp}/planted; echo x > /tmp/bargein-planted"),
    Escape("see others' /dev/shm", "cat /dev/shm/{shm}", landlock=False),
    # --- secrets
    Escape("read ~/.ssh", "cat {home}/.ssh/id"),
    Escape("read ~/.netrc", "cat {home}/.netrc"),
    Escape("search the home directory", "grep -r . {home}"),
    Escape("link a secret", "ln {home}/.ssh/id l5; ln -s {home}/.ssh/id l6; cat l5 l6"),
    Escape("move a secret", "mv {home}/.ssh l7; cat l7/id"),
    Escape("read a secret through /proc/1/root", "cat /proc/1/root{home}/.ssh/id"),
    Escape("read a secret through a process outside", "cat /proc/{pid}/root{home}/.ssh/id"),
    Escape("read through descriptors in /proc", "timeout 1 cat /proc/1/fd/* /proc/{pid}/fd/*"),
    # --- what the user's programs run
    Escape("plant a git hook", "echo x > .git/hooks/pre-commit", landlock=False),
    Escape("replace the hooks", "rm -rf .git/hooks; mv .git/hooks h1; ln -s . .git/hooks", landlock=False),
    Escape("change git's configuration", "git config core.fsmonitor evil", landlock=False),
    Escape("replace git's configuration", "echo x > c1; mv -f c1 .git/config; rm -f .git/config", landlock=False),
    Escape("replace the repository", "mv .git g1 && cp -r g1 .git && echo x >> .git/config", landlock=False),
    Escape("replace a link to the hooks", "rm nested/.git/hooks; mkdir nested/.git/hooks; echo x > nested/.git/hooks/pre-commit", landlock=False),
    Escape("write through a link to the hooks", "echo x > nested/shared/pre-commit; rm nested/shared/own", landlock=False),
    Escape("change the hooks that the configuration names", "echo x > .named/pre-commit; mv .named n1", landlock=False),
    Escape("change the configuration of a repository below", "echo x >> nested/.git/config", landlock=False),
    Escape("turn a submodule into another repository", EVIL + "echo 'gitdir: ../evil/.git' > module/.git; rm -rf module/.git; cp -r evil/.git module/.git", landlock=False),
    Escape("make git look into a repository", EVIL + LINK, landlock=False),
    Escape("the same with a compressed index", EVIL + LINK + "; git update-index --index-version 4", landlock=False),
    Escape("the same with a shared index", EVIL + LINK + "; git update-index --split-index", landlock=False),
    Escape("a configuration elsewhere", EVIL + "mkdir c2; cp -r .git/objects .git/refs evil/.git/config c2/; echo ../c2 > .git/commondir", landlock=False),
    Escape("a second configuration", EVIL + "cp evil/.git/config .git/config.worktree; ls .git/config.worktree && " + SAY + " > /dev/null", landlock=False),
    Escape("change Bargein's settings", "echo x >> bargein.toml; rm -f bargein.toml", landlock=False),
    Escape("change .bashrc", "echo x >> {home}/.bashrc"),
    Escape("plant a program on PATH", "echo x > {home}/bin/planted"),
    Escape("replace a program on PATH", "cp /bin/true {home}/bin/tool; rm -f {home}/bin/tool"),
    Escape("preload a library", "echo x > /etc/ld.so.preload && " + SAY),
    Escape("plant a cron job", "echo '0 0 1 1 * true' | crontab - && " + SAY),
    Escape("have systemd run it", "systemd-run --wait true && " + SAY),
    # --- mounts and namespaces
    Escape("uncover", "umount {home}/.ssh; umount -l {home}/.ssh; cat {home}/.ssh/id"),
    Escape("bind elsewhere", "mkdir m1; mount --bind {home} m1; cat m1/.ssh/id"),
    Escape("remount writable", "mount -o remount,bind,rw {out}; mount -o remount,rw /; echo x > {out}/planted"),
    Escape("overlay", "mkdir m2; mount -t overlay -o lowerdir={home}:{ws} o m2; cat m2/.ssh/id"),
    Escape("uncover in a user namespace", "unshare -Urm sh -c 'umount {home}/.ssh; cat {home}/.ssh/id'"),
    Escape("write in a user namespace", "unshare -Urm sh -c 'mount -o remount,bind,rw {out}; echo x > {out}/planted'"),
    Escape("get rights in a user namespace", "unshare -U true && " + SAY),
    Escape("the same by clone", _syscall("56, 0x10000011, 0, 0, 0, 0") if os.uname().machine == "x86_64" else "unshare -U true && " + SAY),
    Escape("enter namespaces of process 1", "nsenter -t 1 -m -p cat {home}/.ssh/id"),
    Escape("enter namespaces of a process outside", "nsenter -t {pid} -m cat {home}/.ssh/id"),
    Escape("change the root to one outside", "chroot /proc/{pid}/root cat {home}/.ssh/id; chroot /proc/1/root cat {home}/.ssh/id"),
    # --- devices and the kernel
    Escape("make a device", _py("import os, stat; os.mknod(\"d1\", stat.S_IFBLK | 0o600, os.stat(\"/\").st_dev); PRINT")),
    Escape("read a disk", _py("import glob; [open(p, \"rb\").read(1) and PRINT for p in glob.glob(\"/dev/[svn][dv]*\")]")),
    Escape("read the kernel's memory", "head -c1 /dev/mem && " + SAY + "; head -c1 /proc/kcore && " + SAY),
    Escape("change a kernel setting", "f=/proc/sys/kernel/core_pattern; v=$(cat $f) && printf %s \"$v\" > $f && " + SAY),
    Escape("press SysRq", _py("import os; os.open(\"/proc/sysrq-trigger\", os.O_WRONLY); PRINT")),
    Escape("open by handle", _syscall("304 if __import__(\"os\").uname().machine == \"x86_64\" else 265, -100, b\"\\0\" * 64, 0") ),
    Escape("a file system by the newer calls", _syscall("430, b\"tmpfs\", 0")),
    Escape("a copy of a mount", _syscall("428, -100, b\"/\", 1") + "; " + _syscall("467, -100, b\"/\", 1, 0, 0")),
    Escape("change the root by pivoting", _syscall("155 if __import__(\"os\").uname().machine == \"x86_64\" else 41, b\".\", b\".\"")),
    Escape("change the clock", "date -s @$(date +%s) && " + SAY),
    Escape("change the machine's name", "hostname $(hostname) && " + SAY),
    Escape("watch the kernel's counters", _syscall("298 if __import__(\"os\").uname().machine == \"x86_64\" else 241, (ctypes.c_uint32 * 32)(1, 128), 0, -1, -1, 0")),
    Escape("load a kernel module", "modprobe dummy && " + SAY),
    Escape("load a BPF program", _syscall("321 if __import__(\"os\").uname().machine == \"x86_64\" else 280, 0, (ctypes.c_uint32 * 32)(2, 4, 4, 1), 128")),
    Escape("asynchronous I/O past the filter", _syscall("425, 4, ctypes.create_string_buffer(256)")),
    Escape("read the kernel's keys", _syscall("250 if __import__(\"os\").uname().machine == \"x86_64\" else 219, 0, -4, 1")),
    Escape("type into a terminal", _py("import fcntl, pty; fcntl.ioctl(pty.openpty()[1], 0x5412, b\"x\"); PRINT")),
    Escape("write to a terminal outside", "echo x > {pts} && " + SAY, landlock=False),
    Escape("leave the cgroup", "for f in /sys/fs/cgroup/cgroup.procs /sys/fs/cgroup/unified/cgroup.procs; do echo $$ > $f && " + SAY + "; done"),
    # --- rights
    Escape("make a set-user-ID program", "cp /bin/sh s1; chmod 4755 s1; chmod u+s s1; chmod g+s s1; test -u s1 -o -g s1 && " + SAY + "; rm -f s1"),
    Escape("make one by opening it", _py("import os; [PRINT for n in (0o4755, 0o2755) if os.stat(os.open(\"s2\", os.O_CREAT | os.O_WRONLY, n)).st_mode & 0o6000]; os.unlink(\"s2\")") + "; rm -f s2"),
    Escape("give a file capabilities", "cp /bin/true s3; setcap cap_sys_admin+ep s3 && " + SAY + "; rm -f s3"),
    Escape("gain rights by a set-user-ID program", "grep -q 'NoNewPrivs.*1' /proc/self/status || " + SAY),
    Escape("keep the rights of root", _py("int(open(\"/proc/self/status\").read().split(\"CapBnd:\")[1].split()[0], 16) & ~0x4fb and PRINT")),
    Escape("inherited descriptors", _py("import os; [PRINT for n in range(3, 256) if os.path.exists(f\"/proc/self/fd/{n}\") and \"/proc/\" not in os.readlink(f\"/proc/self/fd/{n}\")]").replace("{n}", "{{n}}")),
    # --- processes
    Escape("see environments of others", "grep -aho {mark} /proc/[0-9]*/environ"),
    Escape("see command lines of others", "cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -o 'victim {mark}'", landlock=False),
    Escape("trace a process outside", _syscall("101 if __import__(\"os\").uname().machine == \"x86_64\" else 117, 16, {pid}, 0, 0")),
    Escape("trace process 1", _syscall("101 if __import__(\"os\").uname().machine == \"x86_64\" else 117, 16, 1, 0, 0")),
    Escape("read a process's memory", "head -c1 /proc/{pid}/mem && " + SAY + "; dd if=/proc/1/mem bs=1 count=1 skip=4096 && " + SAY),
    Escape("read a process's memory by a call", _syscall("310 if __import__(\"os\").uname().machine == \"x86_64\" else 270, {pid}, (ctypes.c_uint64 * 2)(ctypes.addressof(_b), 8), 1, (ctypes.c_uint64 * 2)(int(open(\"/proc/{pid}/maps\").readline().split(\"-\")[0], 16), 8), ctypes.c_ulong(1), ctypes.c_ulong(0)").replace("call(310", "_b = ctypes.create_string_buffer(8); call(310", 1)),
    Escape("take a descriptor of a process outside", _syscall("438, call(434, {pid}, 0), 0, 0")),
    Escape("signal everybody", _py(
        "import os\n"
        "for name in os.listdir(\"/proc\"):\n"
        "  if name.isdigit() and int(name) not in (os.getpid(), os.getppid()):\n"
        "    try: os.kill(int(name), 0); PRINT\n"
        "    except OSError: pass"
    )),
    Escape("slow a process outside down", "renice 19 {pid} && " + SAY),
    Escape("kill a process outside", "kill -9 {pid}"),
    Escape("stop a process group outside", "kill -STOP -{pid}; kill -9 -{pid}"),
    # --- sockets and shared memory
    Escape("connect to this machine", _connect("socket.create_connection((\"127.0.0.1\", {tcp}), 1)")),
    Escape("connect by IPv6", _connect("socket.create_connection((\"::1\", {tcp6}), 1)")),
    Escape("send a datagram, as DNS does", _py("import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b\"escaped\", (\"127.0.0.1\", {udp}))")),
    Escape("connect to an abstract socket", _py("import socket; s = socket.socket(socket.AF_UNIX); s.connect(chr(0) + \"{abstract}\"); print(s.recv(99).decode())")),
    Escape("connect to a socket of a service", _py("import socket; s = socket.socket(socket.AF_UNIX); s.connect(\"{home}/.docker/sock\"); print(s.recv(99).decode())"), landlock=False),
    Escape("connect to a socket of the session's", _py("import socket; s = socket.socket(socket.AF_UNIX); s.connect(\"{runtime}/bus\"); print(s.recv(99).decode())"), landlock=False),
    Escape("a socket to the machine's host", _py("import socket; socket.socket(40, socket.SOCK_STREAM); PRINT")),
    Escape("raw packets", _py("import socket; socket.socket(17, socket.SOCK_RAW); PRINT")),
    Escape("a cable out of the network namespace", "ip link add bargein0 type veth peer name bargein1 netns {pid} && " + SAY),
    Escape("System V shared memory", _py("import ctypes; c = ctypes.CDLL(None); c.shmat.restype = ctypes.c_void_p; i = c.shmget({sysv}, 0, 0); i >= 0 and PRINT"), landlock=False),
)  # fmt: skip


class Outside:
    """What is outside of the sandbox, and whether it is as it was."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home, self.ws, self.runtime = folder / "home", folder / "work", folder / "runtime"
        for each in (self.home / ".ssh", self.home / ".docker", self.home / "bin", self.ws):
            each.mkdir(parents=True)
        self.runtime.mkdir()
        (self.home / ".ssh/id").write_text(MARK)
        (self.home / ".netrc").write_text(MARK)
        (self.home / ".bashrc").write_text("# mine\n")
        (self.home / "bin/tool").write_text("#!/bin/sh\n")
        (folder / "victim").write_text("victim\n")
        subprocess.run(["git", "init", "-q", self.ws], check=True)
        (self.ws / ".git/hooks").mkdir(exist_ok=True)
        (self.ws / ".named").mkdir()
        (self.ws / ".named/own").write_text("# mine\n")
        module, nested = self.ws / "module", self.ws / "nested"
        for each in (module, nested):
            subprocess.run(["git", "init", "-q", each], check=True)
            commit = ["-c", "user.name=x", "-c", "user.email=x@y", "commit", "-q", "--allow-empty"]
            subprocess.run(["git", "-C", each, *commit, "-m", "first"], check=True)
        (nested / "shared").mkdir()
        (nested / "shared/own").write_text("# mine\n")
        shutil.rmtree(nested / ".git/hooks", ignore_errors=True)
        (nested / ".git/hooks").symlink_to("../shared")
        for words in (
            ["config", "core.hooksPath", ".named"],
            ["-c", "advice.addEmbeddedRepo=false", "add", "module"],
        ):
            subprocess.run(["git", "-C", self.ws, *words], check=True)
        (self.ws / "bargein.toml").write_text("# mine\n")
        self.tmp = Path(tempfile.mkdtemp(prefix="bargein-escape-"))
        (self.tmp / "secret").write_text(MARK)
        self.shm = Path(f"/dev/shm/bargein-{os.getpid()}")
        self.shm.write_text(MARK)
        self.process = subprocess.Popen(
            ["cat"],
            executable="/bin/cat",
            env={"SECRET": MARK},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self.named = subprocess.Popen(
            [sys.executable, "-c", "import time; time.sleep(600)", f"victim {MARK}"]
        )
        self.sockets: list[socket.socket] = []
        self.tcp = self._serve(socket.socket(), ("127.0.0.1", 0))
        self.tcp6 = self._serve(socket.socket(socket.AF_INET6), ("::1", 0))
        self.abstract = f"bargein-{os.getpid()}"
        self._serve(socket.socket(socket.AF_UNIX), f"\0{self.abstract}")
        self._serve(socket.socket(socket.AF_UNIX), str(self.home / ".docker/sock"))
        self._serve(socket.socket(socket.AF_UNIX), str(self.runtime / "bus"))
        datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        datagrams.bind(("127.0.0.1", 0))
        self.udp = datagrams.getsockname()[1]
        datagrams.setblocking(False)
        self.sockets.append(datagrams)
        self._datagrams = datagrams
        self.terminal, slave = pty.openpty()
        self.pts = os.ttyname(slave)
        libc = ctypes.CDLL(None)
        self.sysv = 0x42617267 + os.getpid()
        self._segment = libc.shmget(self.sysv, 4096, 0o1666)
        self._remove_segment: Callable[[], object] = lambda: libc.shmctl(self._segment, 0, None)
        self.before = self.state()

    def _serve(self, listener: socket.socket, address: object) -> int:
        listener.bind(address)  # type: ignore[arg-type]
        listener.listen()
        self.sockets.append(listener)

        def serve() -> None:
            while True:
                try:
                    with listener.accept()[0] as connection:
                        connection.sendall(MARK.encode())
                except OSError:
                    return

        threading.Thread(target=serve, daemon=True).start()
        name = listener.getsockname()
        return int(name[1]) if isinstance(name, tuple) else 0

    def _has_heard(self) -> bool:
        """A datagram to this machine has arrived when it has been sent."""
        try:
            return bool(self._datagrams.recv(99))
        except BlockingIOError:
            return False

    def _is_alive(self) -> bool:
        """Asks the process outside for an answer: it gives none once a signal is on its way to end it.

        Its exit status comes later than that, on a busy machine much later.
        """
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            os.write(self.process.stdin.fileno(), b"?")
        except BrokenPipeError:
            return False
        answers, _, _ = select.select([self.process.stdout], [], [], 5)
        return bool(answers) and os.read(self.process.stdout.fileno(), 1) == b"?"

    def state(self) -> dict[str, object]:
        """Everything outside, and what is protected inside of the workspace."""
        found: dict[str, object] = {}
        # As the user would: whatever was planted for git now runs, and changes something outside.
        subprocess.run(["git", "status"], cwd=self.ws, capture_output=True, check=False)
        names = ("bargein.toml", ".git/config", ".git/hooks", ".git/commondir", ".named")
        nested = ("nested/.git/hooks", "nested/.git/config", "nested/shared", "module/.git/config")
        roots = [self.home, self.tmp, *(self.ws / name for name in (*names, *nested))]
        for root in roots:
            for path in (root, *(sorted(root.rglob("*")) if root.is_dir() else ())):
                found[str(path)] = _about(path)
        for path in sorted(self.folder.iterdir()):
            found[str(path)] = _about(path)
        found["/tmp"] = os.path.exists("/tmp/bargein-planted")
        found["process"] = self._is_alive()
        found["heard"] = self._has_heard()
        return found

    def about(self) -> dict[str, object]:
        return {
            "out": self.folder, "ws": self.ws, "home": self.home, "tmp": self.tmp,
            "runtime": self.runtime, "shm": self.shm.name, "pid": self.process.pid,
            "tcp": self.tcp, "tcp6": self.tcp6, "udp": self.udp, "abstract": self.abstract,
            "pts": self.pts, "sysv": self.sysv, "mark": MARK[:-1] + "[E]",
        }  # fmt: skip

    def close(self) -> None:
        for each in self.sockets:
            each.close()
        for process in (self.process, self.named):
            process.kill()
            process.wait()
            for pipe in filter(None, (process.stdin, process.stdout)):
                pipe.close()
        self.shm.unlink()
        self._remove_segment()


def _about(path: Path) -> object:
    try:
        about = path.lstat()
    except OSError:
        return None
    content = path.read_bytes() if path.is_file() else b""
    return about.st_mode, about.st_uid, int(about.st_mtime) if content else 0, content


async def tried(means: MeansChoice, chosen: str, folder: Path) -> dict[str, str]:
    outside = Outside(folder)
    environment = {
        **{name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ},
        "HOME": str(outside.home),
        "XDG_RUNTIME_DIR": str(outside.runtime),
    }
    found: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as private:
        off, names = chosen.startswith("off:"), chosen.removeprefix("off:").split(";")
        sandbox: SandboxChoice = "Landlock" if chosen == "Landlock" else "namespaces"
        async with await open_containment(
            means, network=None if off else "none", sandbox=sandbox
        ) as containment:
            about = containment.report.sandbox
            found["means"], found["detail"] = about.means, about.detail
            if not about.means and not off:
                outside.close()
                return found
            closed_in = CommandSandbox(containment, str(outside.ws), Path(private), environment)
            try:
                found["honest"] = await _said(closed_in, HONEST, environment, outside.ws)
                outside.before = outside.state()
                for escape in ESCAPES:
                    if off and escape.name not in names:
                        continue
                    said = await _run(closed_in, escape, environment, outside)
                    now = outside.state()
                    if MARK in said:
                        found[escape.name] = said[-300:]
                    elif now != outside.before:
                        changed = [key for key in now if now[key] != outside.before.get(key)]
                        found[escape.name] = f"changed: {changed}"
                    for planted in (folder / "planted", outside.ws / "l1", outside.ws / "l4"):
                        planted.unlink(missing_ok=True)
                    _forget_repositories(outside.ws)
                    outside.before = outside.state()
            finally:
                outside.close()
    return found


def _forget_repositories(ws: Path) -> None:
    """So that what one of them made does not show in the next."""
    for made in ("evil", "c2"):
        shutil.rmtree(ws / made, ignore_errors=True)
    git = ["git", "-c", "core.fsmonitor=false", "-C", str(ws)]
    for words in (
        ["update-index", "--index-version", "2"],
        ["update-index", "--no-split-index"],
        ["update-index", "--force-remove", "evil"],
    ):
        subprocess.run([*git, *words], capture_output=True, check=False)


async def _run(
    closed_in: CommandSandbox, escape: Escape, environment: dict[str, str], outside: Outside
) -> str:
    command = escape.command
    for name, value in outside.about().items():
        command = command.replace(f"{{{name}}}", str(value))
    command = command.replace("{{", "{").replace("}}", "}")
    return await _said(closed_in, command, environment, outside.ws)


async def _said(
    closed_in: CommandSandbox, command: str, environment: dict[str, str], cwd: Path
) -> str:
    view = closed_in.view("escapes")
    if view is not None:
        closed_in.begin()
    own = closed_in.environment(view) if view is not None else {}
    with CancelSource("escape", timeout_s=8) as source:
        process = await closed_in.containment.spawn(
            ["sh", "-c", command],
            cwd=cwd,
            env={**environment, **own},
            token=source.token,
            view=view,
        )
        await process.wait()
        await process.stop()
        if view is not None:
            closed_in.end()
        return process.output.text()


HONEST = """
set -e
echo hello > file; mkdir -p a b; mv file a/; cp a/file b/; rm b/file
git add -A; git -c user.name=x -c user.email=x@y commit -qm work; git log --oneline | wc -l
test -e nested/.git/config; git status --short; git stash list; git checkout -qb other; git gc -q
t=$(mktemp); echo in-tmp > $t; cat $t; rm $t
PYTHON -c 'import tempfile, socket, multiprocessing as m; tempfile.TemporaryFile(); m.Lock()'
ls / > /dev/null; cat /etc/hostname > /dev/null; echo $((1+1)) > /dev/null
echo fine
""".replace("PYTHON", PYTHON)


if __name__ == "__main__":
    arguments = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    sys.stdout.write(json.dumps(asyncio.run(tried(*arguments))))  # type: ignore[arg-type]
