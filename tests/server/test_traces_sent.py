"""The real program sends its traces where OpenTelemetry's variables say, and leaves in time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import aiohttp
import anyio
import pytest
from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

pytestmark = pytest.mark.anyio

SCRIPT = """
repeat = true
[[answers]]
steps = [{ do = "say", text = "a secret answer" }]
"""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_spans_arrive_and_say_nothing_that_was_said(tmp_path: Path) -> None:
    received: list[bytes] = []

    async def collect(request: web.Request) -> web.Response:
        received.append(await request.read())
        return web.Response()

    app = web.Application()
    app.router.add_post("/v1/traces", collect)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    script = tmp_path / "script.toml"
    script.write_text(SCRIPT)
    environment = {
        **os.environ,
        "BARGEIN_HOME": str(tmp_path / "home"),
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{runner.addresses[0][1]}",
        "OTEL_EXPORTER_OTLP_COMPRESSION": "none",
    }
    program = Path(sys.executable).with_name("bargein")
    process = await anyio.open_process(
        [str(program), "serve", "--port", "0", "--scripted", str(script)],
        env=environment,
        stderr=subprocess.PIPE,
    )
    async with process:
        assert process.stderr is not None
        address, token = await _where(process.stderr, tmp_path / "home")
        headers = {"authorization": f"Bearer {token}"}
        async with aiohttp.ClientSession(headers=headers) as http:
            async with http.post(f"{address}v1/sessions", json={}) as made:
                session = (await made.json())["session"]["id"]
            url = f"{address}v1/sessions/{session}"
            async with http.post(f"{url}/messages", json={"text": "a secret word"}) as sent:
                turn = (await sent.json())["turn"]
            async with http.get(f"{url}/turns/{turn}?wait=true") as settled:
                assert (await settled.json())["outcome"] == "completed"
        process.send_signal(signal.SIGTERM)
        with anyio.fail_after(40):
            assert await process.wait() == 0
    await runner.cleanup()
    names = [
        span.name
        for body in received
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]
    assert sorted(names) == ["model scripted", "turn"]
    assert not any(b"secret" in body for body in received)


async def _where(stderr: anyio.abc.ByteReceiveStream, home: Path) -> tuple[str, str]:
    """Returns the server's address and token, which it does not print to a pipe."""
    said = b""
    with anyio.fail_after(40):
        while said.count(b"\n") < 2:
            said += await stderr.receive()
    assert b"token=" not in said
    told = json.loads(await anyio.Path(home / "gateway.json").read_text())
    return told["url"], told["token"]
