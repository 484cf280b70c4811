"""A process that held keys no longer shows them."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.process.ordinary_user import as_ordinary_user

SECRET = "sk-1234567890abcdef1234"
ARGUMENTS = ["--model", f"openai:m@https://me:{SECRET}@host/v1", "http://plain/", "words"]
CODE = """
import os, subprocess, sys
from bargein.sandbox.keyholder import forget_secrets, refuse_tracing
from bargein.tools.environment import is_secret
kept = os.environ["OPENAI_API_KEY"]
count = forget_secrets(is_secret, spare=lambda name: name.startswith("OTEL_"))
with open("/proc/self/environ", "rb") as file:
    shown = file.read()
assert refuse_tracing()
child = subprocess.run(["env"], capture_output=True, text=True).stdout
print(count, kept in shown.decode(), b"HARMLESS=yes" in shown, shown.count(b"="))
print("OPENAI_API_KEY" in os.environ, os.environ.get("OTEL_EXPORTER_OTLP_HEADERS"))
print(kept in child, "HARMLESS=yes" in child)
print(os.environ["HARMLESS"], len(kept))
with open("/proc/self/cmdline", "rb") as file:
    line = file.read()
print(kept in line.decode(), b"--model" in line, b"plain/" in line, "plain" in sys.argv[-2])
print("ready", flush=True)
sys.stdin.read()
"""


def test_keys_are_gone_from_what_others_can_see() -> None:
    environment = {
        "PATH": os.environ["PATH"],
        "HARMLESS": "yes",
        "OPENAI_API_KEY": SECRET,
        "DATABASE_URL": f"postgres://me:{SECRET}@host/db",
        "OTEL_EXPORTER_OTLP_HEADERS": f"api-key={SECRET}",
        "EMPTY_TOKEN": "",
        "WITH_TOKEN": f"a=b={SECRET}",
    }
    with subprocess.Popen(
        [*as_ordinary_user(), sys.executable, "-c", CODE, *ARGUMENTS],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            lines = [process.stdout.readline().strip() for _ in range(6)]
            assert lines == [
                "5 False True 7",
                f"False api-key={SECRET}",
                "False True",
                f"yes {len(SECRET)}",
                "False True True True",
                "ready",
            ]
            if os.geteuid() == 0:
                with open(f"/proc/{process.pid}/environ") as file:
                    assert SECRET not in file.read()
            # Another program of the same user, who cannot trace it.
            other = subprocess.run(
                [*as_ordinary_user()[:4], "cat", f"/proc/{process.pid}/environ"]
                if os.geteuid() == 0
                else ["cat", f"/proc/{process.pid}/environ"],
                capture_output=True,
                text=True,
                check=False,
            )
            assert "Permission denied" in other.stderr
        finally:
            process.kill()


@pytest.mark.parametrize("names", [{}, {"PLAIN": "x"}])
def test_an_environment_without_secrets_stays_as_it_is(names: dict[str, str]) -> None:
    code = (
        "import os; before = dict(os.environ)\n"
        "from bargein.sandbox.keyholder import forget_secrets\n"
        "from bargein.tools.environment import is_secret\nprint(forget_secrets(is_secret))\n"
        "assert dict(os.environ) == before"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=names, capture_output=True, text=True, check=True
    )
    assert done.stdout == "0\n"
