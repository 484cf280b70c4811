"""A server of the Tasks extension (SEP-2663), over stdio, in the stateless era.

Standard library alone. Its tasks are in a folder, one file each, so that they outlive it; a test
changes them there. What it is asked is in the file `log`. It creates tasks only for clients that
announce the extension.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

FOLDER = Path(sys.argv[1])
META = "io.modelcontextprotocol/"
EXTENSION = f"{META}tasks"
TOOLS = [
    "slow",  # works until it is cancelled, or until the test ends it
    "quick",  # is over at the first look
    "asks",  # wants a name, then is over
    "fails",  # ends with an error of the protocol
    "stubborn",  # acknowledges a cancel and works on
    "plain",  # creates no task
]
MINE = {"createdAt": "2026-11-01T00:00:00Z", "lastUpdatedAt": "2026-11-01T00:00:00Z"}


def note(words: str) -> None:
    with (FOLDER / "log").open("a") as log:
        log.write(f"{words}\n")


def text(words: str) -> dict[str, Any]:
    return {"resultType": "complete", "content": [{"type": "text", "text": words}]}


def path_of(task: str) -> Path:
    return FOLDER / f"{task}.json"


def read(task: str) -> dict[str, Any] | None:
    path = path_of(task)
    return json.loads(path.read_text()) if path.exists() else None


def write(task: dict[str, Any]) -> None:
    path = path_of(task["taskId"])
    path.with_suffix(".new").write_text(json.dumps(task))
    path.with_suffix(".new").rename(path)


def call(params: dict[str, Any]) -> dict[str, Any]:
    name = params["name"]
    offered = params["_meta"][f"{META}clientCapabilities"].get("extensions", {})
    if name == "plain" or EXTENSION not in offered:
        return text("no task")
    number = len(list(FOLDER.glob("*.json"))) + 1
    task = {"taskId": f"task-{number}", "tool": name, "status": "working", "ttlMs": 60_000, **MINE}
    task |= {"pollIntervalMs": 50, "statusMessage": "half-way"}
    write(task)
    return {"resultType": "task", **shown(task)}


def shown(task: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in task.items() if key != "tool"}


def get(task: dict[str, Any]) -> dict[str, Any]:
    tool, given = task["tool"], task.get("given")
    if tool == "quick":
        task |= {"status": "completed", "result": text("it is done")}
    elif tool == "fails":
        task |= {"status": "failed", "error": {"code": -32603, "message": "it broke"}}
    elif tool == "asks" and given is None:
        schema = {"type": "object", "properties": {"name": {"type": "string"}}}
        asked = {"message": "Who?", "requestedSchema": schema}
        request = {"method": "elicitation/create", "params": asked}
        task |= {"status": "input_required", "inputRequests": {"who": request}}
    elif tool == "asks":
        task |= {"status": "completed", "result": text(json.dumps(given))}
        task.pop("inputRequests", None)
    write(task)
    return {"resultType": "complete", **shown(task)}


def answer(method: str, params: dict[str, Any]) -> dict[str, Any]:
    if method == "server/discover":
        abilities: dict[str, Any] = {"tools": {}, "extensions": {EXTENSION: {}}}
        versions = {"supportedVersions": ["2026-07-28"], "capabilities": abilities}
        return {"resultType": "complete", **versions}
    if method == "tools/list":
        tools = [{"name": name, "inputSchema": {"type": "object"}} for name in TOOLS]
        return {"resultType": "complete", "tools": tools}
    if method == "tools/call":
        return call(params)
    task = read(params["taskId"])
    if task is None:
        raise LookupError
    if method == "tasks/get":
        return get(task)
    if method == "tasks/cancel":
        if task["tool"] != "stubborn" and task["status"] == "working":
            write(task | {"status": "cancelled"})
    elif method == "tasks/update":
        write(task | {"given": params["inputResponses"], "status": "working"})
    return {"resultType": "complete"}


def main() -> None:
    for line in sys.stdin:
        message = json.loads(line)
        if "id" not in message:
            continue
        method = message["method"]
        note(f"{method} {message['params'].get('taskId', '')}".strip())
        reply: dict[str, Any] = {"jsonrpc": "2.0", "id": message["id"]}
        try:
            reply["result"] = answer(method, message["params"])
        except LookupError:
            reply["error"] = {"code": -32602, "message": "no such task"}
        sys.stdout.write(f"{json.dumps(reply)}\n")
        sys.stdout.flush()


main()
