"""Commands that try to see a hidden directory. Run as a program: tries them all, and prints JSON.

python -m tests.sandbox.attacks MEANS HIDDEN KEPT
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

from bargein.cancel import CancelSource
from bargein.process import Hiding, MeansChoice, open_containment

# {hidden} holds a file `secret` with the word MARMALADE; {pid} is the process that hides it.
MARK = "MARMALADE"
ATTACKS = {
    "read": "cat {hidden}/secret",
    "list": "ls -A {hidden}; find {hidden} -name secret",
    "from inside": "cd {hidden} && cat secret",
    "through the owner's root": "cat /proc/{pid}/root{hidden}/secret",
    "through the owner's folder": "cat /proc/{pid}/cwd/secret",
    "through the owner's descriptors": "cat /proc/{pid}/fd/*",
    "through everybody's root": "cat /proc/[0-9]*/root{hidden}/secret",
    "uncover it": "umount {hidden}; umount -l {hidden}; cat {hidden}/secret",
    "uncover it in a namespace": "unshare -Urm sh -c 'umount {hidden}; cat {hidden}/secret'",
    "bind the folder above": "unshare -Urm sh -c 'mount --bind {above} /mnt; cat /mnt/*/secret'",
    "enter the owner's namespace": "nsenter -t {pid} -m cat {hidden}/secret",
    "enter the first namespace": "nsenter -t 1 -m cat {hidden}/secret",
    "read the owner's memory": "grep -a -o {mark} /proc/{pid}/mem",
    "write there": "echo {mark} > {hidden}/new && cat {hidden}/new",
    "move it away": "mv {hidden} {hidden}-moved; cat {hidden}-moved/secret",
    "link it": "ln {hidden}/secret {above}/linked; cat {above}/linked",
}


async def tried(means: MeansChoice, hidden: str, kept: str) -> dict[str, object]:
    hiding = Hiding((hidden,), (kept,))
    found: dict[str, object] = {}
    os.chdir(hidden)
    async with await open_containment(means, hiding=hiding) as containment:
        report = containment.report.hiding
        found |= {"how": report.how, "fenced": report.fenced, "detail": report.detail}
        if not report.works:
            # Nothing is hidden, and some of these would wait for ever on what they find.
            return found
        with CancelSource("attacks") as source:

            async def run(command: str, cwd: str) -> str:
                # The word itself must not be on its command line, or looking for it finds that.
                process = await containment.spawn(
                    ["sh", "-c", command],
                    cwd=cwd,
                    env={"PATH": os.environ["PATH"], "MARK": MARK},
                    token=source.token,
                )
                await process.wait()
                await process.stop()
                return process.output.text()

            about = {
                "hidden": hidden,
                "above": str(Path(hidden).parent),
                "pid": os.getpid(),
                "mark": MARK[:-1] + "[E]",
            }
            for name, attack in ATTACKS.items():
                found[name] = await run(attack.format_map(about), "/")
            found["in what is kept"] = await run("echo here > new; cat new; pwd", kept)
            found["a move between folders"] = await run(
                "mkdir a b && echo moved > a/file && mv a/file b/ && ln b/file a/ && cat a/file",
                kept,
            )
    return found


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asyncio.run(tried(sys.argv[1], *sys.argv[2:4]))))  # type: ignore[arg-type]
