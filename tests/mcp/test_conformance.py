"""The official conformance suite: its scenarios for clients, of every revision that we speak."""

from __future__ import annotations

import json
import os
import re
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

AUTH = (
    "auth/metadata-default",
    "auth/metadata-var1",
    "auth/metadata-var2",
    "auth/metadata-var3",
    "auth/basic-cimd",
    "auth/scope-from-www-authenticate",
    "auth/scope-from-scopes-supported",
    "auth/scope-omitted-when-undefined",
    "auth/scope-step-up",
    "auth/scope-retry-limit",
    "auth/token-endpoint-auth-basic",
    "auth/token-endpoint-auth-post",
    "auth/token-endpoint-auth-none",
    "auth/pre-registration",
)

SCENARIOS = {
    "2025-06-18": (
        "initialize",
        "tools_call",
        "auth/token-endpoint-auth-basic",
        "auth/token-endpoint-auth-post",
        "auth/token-endpoint-auth-none",
    ),
    "2025-11-25": (
        *AUTH,
        "initialize",
        "tools_call",
        "elicitation-sep1034-client-defaults",
        "sse-retry",
        "json-schema-2020-12-preservation",
    ),
    "2026-07-28": (
        *AUTH,
        "auth/resource-mismatch",
        "auth/offline-access-scope",
        "auth/offline-access-not-supported",
        "auth/authorization-server-migration",
        "auth/iss-supported",
        "auth/iss-not-advertised",
        "auth/iss-supported-missing",
        "auth/iss-wrong-issuer",
        "auth/iss-unexpected",
        "auth/iss-normalized",
        "auth/metadata-issuer-mismatch",
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
    "auth/client-credentials-jwt": "an extension for programs without a user; ours has one",
    "auth/client-credentials-basic": "the same; a key of a program goes into a variable",
    "auth/enterprise-managed-authorization": "an extension: an identity provider of a company",
    "auth/dpop": "an extension: tokens bound to a key",
    "auth/dpop-nonce": "the same",
    "auth/wif-jwt-bearer": "an extension: identities of workloads in a cloud",
    "auth/2025-03-26-oauth-metadata-backcompat": "a sign-in that 2025-06-18 replaced",
    "auth/2025-03-26-oauth-endpoint-fallback": "the same",
    "sep-2640-client-no-prefetch": "an extension: skills in resources",
    "sep-2640-client-verify-digest": "the same",
    "sep-2640-client-verify-size": "the same",
    "sep-2640-client-verify-frontmatter": "the same",
}
"""Scenarios for clients that are not run, and why. docs/mcp.md lists them too."""


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


def test_every_scenario_for_clients_is_run_or_has_a_reason(tmp_path: Path) -> None:
    listed = conformance("list", "--client", folder=tmp_path).stdout
    found = re.findall(r"^ +- (\S+) \[(.*)\]$", listed, re.MULTILINE)
    assert len(found) > 40, listed
    for version, scenarios in SCENARIOS.items():
        assert {name for name, of in found if version in of.split(",")} == set(scenarios)
    run = {each for scenarios in SCENARIOS.values() for each in scenarios}
    assert {name for name, _ in found} - run == set(NOT_APPLICABLE)
    told = (programs.ROOT / "docs" / "mcp.md").read_text()
    assert [name for name in NOT_APPLICABLE if f"`{name}`" not in told] == []


@pytest.mark.parametrize("version", ["2025-11-25", "2026-07-28"])
def test_every_scenario_that_a_revision_requires_is_run(version: str) -> None:
    package = Path(str(programs.find("mcp-conformance"))).resolve().parents[1]
    text = (package / "requirements" / f"{version}.yaml").read_text()
    required = text.partition("\nclient:\n")[2].partition("\n\n")[0].split()
    names = {each for each in required if each != "-"}
    assert names
    assert names - set(SCENARIOS[version]) == set()
