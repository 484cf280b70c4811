"""The document says what the server does: schemathesis tries to find a difference."""

from __future__ import annotations

import re
import threading
import urllib.request
from collections.abc import Iterator
from typing import Any

import anyio
import anyio.from_thread
import hypothesis
import jsonschema_rs
import msgspec
import pytest
import schemathesis
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from schemathesis.specs.openapi.definitions import OPENAPI_31_VALIDATOR

from bargein.models.script import Answer, Say, Script
from bargein.server.app import OPERATIONS
from bargein.server.limits import GatewayLimits
from bargein.server.openai.described import EXAMPLES as openai_examples  # noqa: N811 - a second one
from bargein.server.openapi import EXAMPLES, document
from bargein.server.problems import STATUS, Code
from bargein.server.shapes import Nothing
from tests.server.stage import START_TOKEN, Json, Stage, serving

TRIES = 8
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A server in a thread of its own: schemathesis is a client that blocks."""
    started = threading.Event()
    stages: list[Stage] = []
    leaves: list[anyio.Event] = []
    portal: list[anyio.from_thread.BlockingPortal] = []

    async def serve() -> None:
        leave = anyio.Event()
        leaves.append(leave)
        script = Script([Answer([Say("ok")])], repeat=True)
        limits = GatewayLimits(requests_per_s=1e6, requests_burst=10**6, wait_s_max=1.0)
        home = tmp_path_factory.mktemp("home")
        async with serving(script, home, limits=limits) as stage:
            stages.append(stage)
            async with anyio.from_thread.BlockingPortal() as opened:
                portal.append(opened)
                started.set()
                await leave.wait()

    thread = threading.Thread(target=anyio.run, args=(serve,))
    thread.start()
    assert started.wait(20)
    yield stages[0]
    portal[0].call(leaves[0].set)
    thread.join(20)


def told() -> Json:
    return msgspec.json.decode(document(OPERATIONS), type=Json)


def test_every_operation_is_described_with_all_its_errors() -> None:
    paths = told()["paths"]
    for operation in OPERATIONS:
        described = paths[f"/v1{operation.path}"][operation.method.lower()]
        assert described["summary"], operation.name
        assert "goes away" in described["description"]
        for status in operation.replies:
            assert str(status) in described["responses"]
        for code in (*operation.problems, Code.UNAUTHENTICATED, Code.TOO_MANY, Code.BAD_REQUEST):
            answer = described["responses"][str(STATUS[code][0])]
            assert code in answer["description"]
            assert "application/problem+json" in answer["content"]


def operations_in(described: Json) -> list[Json]:
    return [each for methods in described["paths"].values() for each in methods.values()]


def test_the_document_is_openapi() -> None:
    """By the specification's own schema; its references lead somewhere."""
    described = told()
    assert not [str(error) for error in OPENAPI_31_VALIDATOR.iter_errors(described)]
    text = msgspec.json.encode(described).decode()
    names = set(re.findall(r'"#/components/schemas/([^"]+)"', text))
    assert names <= set(described["components"]["schemas"])
    for schema in described["components"]["schemas"].values():
        jsonschema_rs.meta.validate(schema)


def test_every_name_in_the_document_is_its_own() -> None:
    described = told()
    schemas = described["components"]["schemas"]
    titles = [schema["title"] for schema in schemas.values()]
    assert sorted(titles) == sorted(set(titles))
    assert all(re.fullmatch(r"[A-Za-z]+", name) for name in schemas)
    ids = [each["operationId"] for each in operations_in(described)]
    assert sorted(ids) == sorted(set(ids))


def test_every_operation_has_a_tag_that_is_described() -> None:
    described = told()
    tags = {each["name"] for each in described["tags"]}
    used = [each["tags"] for each in operations_in(described)]
    assert all(len(each) == 1 for each in used)
    assert {tag for each in used for tag in each} == tags
    assert all(each["description"] for each in described["tags"])


def test_every_body_has_an_example_that_is_taken() -> None:
    bodies = {**EXAMPLES, **openai_examples}
    wanted = {each.body for each in OPERATIONS if each.body not in (None, Nothing)}
    assert wanted | set(openai_examples) == set(bodies)
    for body, example in bodies.items():
        msgspec.json.decode(msgspec.json.encode(example), type=body)
    text = msgspec.json.encode(told())
    for example in bodies.values():
        assert msgspec.json.encode(example) in text


def test_no_request_made_from_the_document_is_a_server_error(served: Stage) -> None:
    """Odd, wrong and right requests for every operation; with a session that there is."""
    made: Json = _post(served, "/v1/sessions")
    session = made["session"]["id"]
    schema = schemathesis.openapi.from_dict(told())
    schema.config.update(base_url=served.url)
    headers = {"authorization": f"Bearer {START_TOKEN}"}
    tried: set[str] = set()
    for result in schema.get_all_operations():
        assert isinstance(result, Ok), result
        operation = result.ok()
        if operation.path.endswith("/events"):
            continue

        @hypothesis.settings(
            max_examples=TRIES,
            deadline=None,
            database=None,
            derandomize=True,
            suppress_health_check=list(hypothesis.HealthCheck),
        )
        @hypothesis.given(case=operation.as_strategy())
        def attempt(case: Any) -> None:
            drawn = case.path_parameters.get("session", "")
            if len(drawn) % 3 and case.method != "DELETE":
                case.path_parameters["session"] = session
            response = case.call(headers=headers, timeout=50)
            case.validate_response(response, checks=CHECKS)
            tried.add(f"{case.method} {case.operation.path}")
            assert response.status_code != 401

        attempt()
    assert len(tried) >= len(OPERATIONS)


def _post(stage: Stage, path: str) -> Json:
    request = urllib.request.Request(
        stage.url + path, data=b"", headers={"authorization": f"Bearer {START_TOKEN}"}
    )
    with urllib.request.urlopen(request, timeout=50) as answer:
        return msgspec.json.decode(answer.read(), type=Json)
