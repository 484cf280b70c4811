"""The official conformance suite, its scenarios for clients, in both eras."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import programs

pytestmark = [
    pytest.mark.timeout(60),
    pytest.mark.needs("mcp-conformance"),
]

CLIENT = Path(__file__).with_name("conformance_client.py")

SCENARIOS = {
    "2025-11-25": (
        "initialize",
        "tools_call",
        "elicitation-sep1034-client-defaults",
        "sse-retry",
        "json-schema-2020-12-preservation",
    ),
    "2026-07-28": (
        "tools_call",
        "request-metadata",
        "sep-2322-client-request-state",
        "http-standard-headers",
        "http-custom-headers",
        "http-invalid-tool-headers",
        "json-schema-ref-no-deref",
        "json-schema-2020-12-preservation",
    ),
}

NOT_APPLICABLE = {
    "auth/": "they sign in with OAuth, which this client does not do yet",
}
"""By the beginning of a scenario's name, and why it is not run."""


def conformance(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    script = programs.find("mcp-conformance")
    assert script is not None
    around = {**os.environ, "PYTHONPATH": str(programs.ROOT)}
    return subprocess.run(
        [programs.node(), script, *arguments],
        cwd=folder,
        env=around,
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
    )


@pytest.mark.parametrize(
    ("version", "scenario"),
    [(version, each) for version, scenarios in SCENARIOS.items() for each in scenarios],
)
def test_scenario(version: str, scenario: str, tmp_path: Path) -> None:
    done = conformance(
        "client",
        *("--command", f"{sys.executable} {CLIENT}"),
        *("--scenario", scenario),
        *("--spec-version", version),
        *("-o", str(tmp_path)),
        folder=tmp_path,
    )
    said = done.stdout + done.stderr
    checks = [
        check for found in tmp_path.rglob("checks.json") for check in json.loads(found.read_text())
    ]
    failed = [check for check in checks if check["status"] == "FAILURE"]
    assert failed == [], said
    assert any(check["status"] == "SUCCESS" for check in checks), said


@pytest.mark.parametrize("version", list(SCENARIOS))
def test_every_scenario_that_a_revision_requires_is_run_or_has_a_reason(
    version: str, tmp_path: Path
) -> None:
    package = Path(str(programs.find("mcp-conformance"))).resolve().parents[1]
    required = (package / "requirements" / f"{version}.yaml").read_text()
    listed = required.partition("\nclient:\n")[2].partition("\n\n")[0].split()
    names = [each for each in listed if each != "-"]
    assert names
    missing = [
        each
        for each in names
        if each not in SCENARIOS[version] and not each.startswith(tuple(NOT_APPLICABLE))
    ]
    assert missing == []
