"""Which program fetches the weights, and how its failures are explained."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from bargein.models.local.errors import WeightsUnavailable
from bargein.models.local.packages import choose_fetcher, environment_for, explain_failure


def test_which_program_is_chosen(tmp_path: Path) -> None:
    uv = tmp_path / "uv"
    uv.write_text("#!/bin/sh\n")
    uv.chmod(0o755)
    with_uv_there, without = {"PATH": str(tmp_path)}, {"PATH": ""}

    def chosen(environment: Mapping[str, str], *installed: str) -> tuple[str, ...]:
        fetcher = choose_fetcher("a==1", tmp_path, environment, has=lambda name: name in installed)
        return fetcher.commands[0]

    assert chosen(with_uv_there, "pip", "ensurepip")[0] == sys.executable
    assert chosen(with_uv_there, "ensurepip")[0] == str(uv)
    assert "venv" in chosen(without, "ensurepip")
    with pytest.raises(WeightsUnavailable, match="neither is installed"):
        chosen(without)


@pytest.mark.parametrize(
    ("output", "told"),
    [
        (
            "ERROR: Could not install packages due to an OSError: [Errno 28] No space left",
            "the disk is full",
        ),
        ("  cause: dns error\n  cause: Name or service not known", "dns error"),
        (
            "ERROR: Exception:\nTraceback\npip._vendor.ReadTimeoutError: Read timed out.",
            "timed out",
        ),
        ("SSLError(SSLCertVerificationError(1, 'certificate verify failed'))", "certificate"),
        ("something\nERROR: the moon is in the way\n", "pip failed: ERROR: the moon is in the way"),
        ("", "no output"),
    ],
)
def test_what_pip_says_is_put_into_a_sentence(output: str, told: str) -> None:
    assert told in explain_failure("pip", "a==1", output)


def test_keys_of_providers_are_not_for_a_package_index(tmp_path: Path) -> None:
    environment = {"PATH": "/bin", "OPENAI_API_KEY": "secret", "PIP_INDEX_URL": "x"}
    given = environment_for(environment, tmp_path)
    assert given == {
        "PATH": "/bin",
        "PIP_INDEX_URL": "x",
        "TMPDIR": str(tmp_path),
        "PYTHONUNBUFFERED": "1",
    }
