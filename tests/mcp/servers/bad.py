"""A server that does what servers must not do. Standard library alone; one kind an argument.

Unless its kind says otherwise it speaks the older era and answers at once. What each of its tools
does stands beside it.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from typing import Any

KIND = sys.argv[1] if len(sys.argv) > 1 else "plain"
MODERN = KIND.startswith("modern")
HUGE_BYTES = 100 << 20

TOOLS = [
    "echo",  # answers with its argument
    "count",  # answers with how often it was called
    "hang",  # never answers
    "deaf",  # stops reading, and answers to nothing any more
    "confirm",  # answers a cancel with an error, as servers of older SDKs do
    "finish_late",  # answers a cancel with its result
    "junk",  # writes lines that are no messages, then answers
    "huge",  # answers with a line of 100 MB
    "crowd",  # answers with some 5 million empty lists
    "twice",  # answers twice, and to requests that nobody made
    "flood",  # sends progress without end, and never answers
    "flood_pings",  # asks whether we are there without end, and never answers
    "die",  # ends its process
    "change",  # changes its list of tools while it runs, and answers with a cancel or later
    "ask",  # asks the user, and answers with what came
    "ask_forever",  # asks for more input each time
    "fork",  # starts a process in a session of its own, twice removed, and answers
    "environment",  # answers with the names of its variables
]

lock = threading.Lock()
running: dict[Any, str] = {}
asked: dict[Any, Any] = {}


class State:
    calls = 0
    changed = False


def send(message: dict[str, Any]) -> None:
    data = json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n"
    with lock:
        write(data)


def write(data: bytes) -> None:
    while data:
        written = os.write(1, data)
        data = data[written:]


def result(request_id: object, value: dict[str, Any]) -> None:
    send({"id": request_id, "result": {"resultType": "complete", **value} if MODERN else value})


def text(request_id: object, words: str) -> None:
    result(request_id, {"content": [{"type": "text", "text": words}]})


def error(request_id: object, code: int, words: str, data: object = None) -> None:
    send({"id": request_id, "error": {"code": code, "message": words, "data": data}})


def call(request_id: Any, params: dict[str, Any]) -> None:
    State.calls += 1
    tool = params["name"]
    arguments = params.get("arguments") or {}
    running[request_id] = tool
    run = globals().get(f"run_{tool}")
    if run is not None:
        run(request_id, arguments, params)


def run_echo(request_id: Any, arguments: dict[str, Any], params: dict[str, Any]) -> None:
    text(request_id, str(arguments.get("text", "")))


def run_count(request_id: Any, arguments: dict[str, Any], params: dict[str, Any]) -> None:
    text(request_id, str(State.calls))


def run_deaf(request_id: Any, arguments: dict[str, Any], params: dict[str, Any]) -> None:
    time.sleep(600)


def run_junk(request_id: Any, arguments: dict[str, Any], params: dict[str, Any]) -> None:
    with lock:
        write(b'Listening on port 1234\n\xff\xfe\x00\n{"half": \n[1, 2]\n{}\n\n')
        write(
            b'{"jsonrpc": "2.0", "id": null, "result": {}}\n{"method": 5}\n' + b"x" * 70000 + b"\n"
        )
    text(request_id, "after the junk")


def run_huge(request_id: Any, arguments: dict[str, Any], params: dict[str, Any]) -> None:
    head = f'{{"jsonrpc":"2.0","id":{request_id},"result":{{"content":[{{"type":"text","text":"'
    with lock:
        write(head.encode())
        piece = b"x" * (1 << 20)
        for _ in range(HUGE_BYTES >> 20):
            write(piece)
        write(b'"}]}}\n')


def run_crowd(request_id: Any, arguments: dict[str, Any], params: dict[str, Any]) -> None:
    with lock:
        write(b'{"jsonrpc":"2.0","result":{"content":[[]')
        for _ in range(5):
            write(b",[]" * 1_000_000)
        write(f']}},"id":{request_id}}}\n'.encode())


def run_twice(request_id: Any, arguments: dict[str, Any], params: dict[str, Any]) -> None:
    for each in (999_999, request_id, request_id, "strange", 1.5, -1):
        text(each, f"answer to {each}")


def run_flood(request_id: Any, arguments: dict[str, Any], params: dict[str, Any]) -> None:
    token = params["_meta"]["progressToken"]
    note = {"method": "notifications/progress", "params": {"progressToken": token, "progress": 1}}
    write_for_ever(note)


def run_flood_pings(request_id: Any, arguments: dict[str, Any], params: dict[str, Any]) -> None:
    write_for_ever({"method": "ping", "id": 1})


def write_for_ever(message: dict[str, Any]) -> None:
    data = (json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n") * 500

    def go() -> None:
        while True:
            with lock:
                write(data)

    threading.Thread(target=go, daemon=True).start()


def run_die(request_id: Any, arguments: dict[str, Any], params: dict[str, Any]) -> None:
    sys.stderr.write("last words\n")
    sys.stderr.flush()
    os._exit(3)


def run_change(request_id: Any, arguments: dict[str, Any], params: dict[str, Any]) -> None:
    State.changed = True
    for _ in range(50):
        send({"method": "notifications/tools/list_changed"})


def run_ask(request_id: Any, arguments: dict[str, Any], params: dict[str, Any]) -> None:
    schema = arguments.get("schema", {"type": "object", "properties": {"name": {"type": "string"}}})
    wanted = {"message": "What is your name?", "requestedSchema": schema}
    if MODERN:
        if "inputResponses" in params:
            text(request_id, json.dumps([params["inputResponses"], params.get("requestState")]))
        else:
            need_input(request_id, wanted)
        return
    asked[f"q-{request_id}"] = request_id
    send({"id": f"q-{request_id}", "method": "elicitation/create", "params": wanted})


def run_ask_forever(request_id: Any, arguments: dict[str, Any], params: dict[str, Any]) -> None:
    need_input(request_id, {"message": "And now?", "requestedSchema": {}})


def need_input(request_id: Any, wanted: dict[str, Any]) -> None:
    asks = {"q": {"method": "elicitation/create", "params": wanted}}
    value = {"resultType": "input_required", "inputRequests": asks, "requestState": "opaque"}
    send({"id": request_id, "result": value})


def run_fork(request_id: Any, arguments: dict[str, Any], params: dict[str, Any]) -> None:
    between = os.fork()
    if between == 0:
        os.setsid()
        if os.fork() == 0:
            for descriptor in (0, 1, 2):
                os.close(descriptor)
            time.sleep(600)
        os._exit(0)
    os.waitpid(between, 0)
    text(request_id, "forked")


def run_environment(request_id: Any, arguments: dict[str, Any], params: dict[str, Any]) -> None:
    text(request_id, json.dumps(dict(os.environ)))


def cancelled(request_id: Any) -> None:
    tool = running.get(request_id)
    if tool == "confirm":
        error(request_id, 0, "Request cancelled")
    elif tool == "finish_late":
        text(request_id, "finished all the same")


def list_tools(request_id: Any, params: dict[str, Any]) -> None:
    names = ["echo", "changed"] if State.changed else TOOLS
    schema: dict[str, Any] = {"type": "object"}
    listed: list[dict[str, Any]] = [
        {"name": name, "description": f"{name} it", "inputSchema": schema} for name in names
    ]
    if KIND == "odd_tools":
        listed += [
            {"name": "dots.and spaces/and more", "inputSchema": schema},
            {"name": "x" * 200, "inputSchema": schema},
            {"name": "x" * 201, "inputSchema": schema},
            {"name": "no_schema"},
            {"name": "big", "inputSchema": {"type": "object", "description": "x" * 100_000}},
            {"name": 5, "inputSchema": schema},
            {"name": "read", "inputSchema": schema, "annotations": {"readOnlyHint": True}},
        ]
    value: dict[str, Any] = {"tools": listed}
    if KIND == "endless_pages":
        value = {"tools": [{"name": f"t{params.get('cursor')}", "inputSchema": schema}]}
        value["nextCursor"] = f"{int(params.get('cursor') or 0) + 1}"
    result(request_id, value)


def discover(request_id: Any) -> None:
    if KIND == "dies_of_probe":
        os._exit(1)
    if KIND == "silent_probe":
        return
    if KIND == "modern_no_version":
        error(request_id, -32022, "Unsupported", {"supported": ["2099-01-01"], "requested": ""})
    elif MODERN:
        tools = {"tools": {"listChanged": True}}
        result(request_id, {"supportedVersions": ["2026-07-28"], "capabilities": tools})
    else:
        error(request_id, {"code_32000": -32000}.get(KIND, -32601), "no such method")


def initialize(request_id: Any) -> None:
    version = "1999-01-01" if KIND == "wrong_version" else "2025-06-18"
    value = {"protocolVersion": version, "capabilities": {"tools": {"listChanged": True}}}
    name = "\x1b[2J\u202e" + "x" * 100_000 if KIND == "ugly" else "bad"
    result(request_id, {**value, "serverInfo": {"name": name, "version": KIND}})


def heard(message: dict[str, Any]) -> None:
    method, request_id = message.get("method"), message.get("id")
    params = message.get("params") or {}
    if method == "server/discover":
        discover(request_id)
    elif method == "initialize":
        initialize(request_id)
    elif method == "ping":
        result(request_id, {})
    elif method == "tools/list":
        list_tools(request_id, params)
    elif method == "tools/call":
        call(request_id, params)
    elif method == "notifications/cancelled":
        cancelled(params.get("requestId"))
    elif method == "subscriptions/listen":
        running[request_id] = "listen"
    elif method is None and request_id in asked:
        text(asked.pop(request_id), json.dumps(message.get("result")))


def main() -> None:
    if KIND == "dies":
        sys.stderr.write("cannot read the configuration\n")
        sys.exit(2)
    if KIND == "silent":
        time.sleep(600)
    if KIND == "ugly":
        sys.stderr.write("\x1b]0;title\x07 broken")
        sys.stderr.flush()
    if KIND == "noisy":
        write(b"Welcome to the server!\n" * 100)
        sys.stderr.write("warning\n" * 100_000)
    if KIND == "leaves_child":
        run_quiet_child()
    for line in sys.stdin:
        heard(json.loads(line))
    if KIND == "ignores_end":
        time.sleep(600)


def run_quiet_child() -> None:
    between = os.fork()
    if between == 0:
        os.setsid()
        if os.fork() == 0:
            for descriptor in (0, 1, 2):
                os.close(descriptor)
            time.sleep(600)
        os._exit(0)
    os.waitpid(between, 0)


main()
