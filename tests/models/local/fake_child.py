"""A stand-in for the runtime's child, run as a script: speaks its protocol, computes nothing.

What it does is written in the model file it is given, as JSON after a GGUF head (see `files.py`).
What it saw goes to the file named there as `log`, one JSON value a line.
"""

import json
import os
import signal
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

MARK = b"\x1ebargein-local "


def main() -> None:
    order = json.loads(sys.stdin.buffer.readline())
    content = Path(order["path"]).read_bytes()
    plan: dict[str, Any] = json.loads(content[content.index(b"{") :])
    log = Log(Path(plan["log"]))
    if plan.get("stubborn"):
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    log.note("started", pid=os.getpid(), key=order["key"], order=order)
    time.sleep(plan.get("load_s", 0))
    while "load_until" in plan and not Path(plan["load_until"]).exists():
        time.sleep(0.01)
    if "error" in plan:
        os.write(1, plan.get("said", "").encode())
        tell("failed", error=plan["error"])
        sys.exit(1)
    if "exit" in plan:
        os.write(1, b"these are my last words")
        os._exit(plan["exit"])
    if "kill" in plan:
        os.kill(os.getpid(), plan["kill"])
    address = plan.get("address")
    if address is None:
        server = Server(order["key"], plan, log)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
    tell("ready", address=address, context_tokens=4096, **plan.get("facts", {}))
    while os.read(0, 1):
        pass
    log.note("input ended")
    os._exit(0)


def tell(what: str, **facts: object) -> None:
    os.write(1, b"\n" + MARK + json.dumps({"what": what, **facts}).encode() + b"\n")


class Log:
    def __init__(self, path: Path) -> None:
        self._path = path

    def note(self, what: str, **facts: object) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps({"what": what, **facts}) + "\n")

    def count(self, what: str) -> int:
        lines = self._path.read_text().splitlines()
        return sum(json.loads(line)["what"] == what for line in lines)


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, key: str, plan: dict[str, Any], log: Log) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.key = key
        self.plan = plan
        self.log = log


class Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.0"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name there
        pass

    def do_POST(self) -> None:
        if self.headers.get("Authorization") != f"Bearer {self.server.key}":
            self.send_error(401)
            return
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.log.note("asked", path=self.path, body=body)
        asked = text_of(body["messages"][-1]["content"])
        self.obey_before(asked)
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        progress = {"total": 10, "cache": 0, "processed": 10, "time_ms": 1}
        self.send({"choices": [{"index": 0, "delta": {}}], "prompt_progress": progress})
        self.say("You said: ")
        self.obey_within(asked)
        self.say(asked)
        self.send({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
        self.send({"choices": [], "usage": {"prompt_tokens": 10, "completion_tokens": 4}})
        self.wfile.write(b"data: [DONE]\n\n")

    def obey_before(self, asked: str) -> None:
        # The first child hangs, the one after it does not.
        if asked == "hang once" and self.server.log.count("started") == 1:
            time.sleep(60)

    def obey_within(self, asked: str) -> None:
        if asked == "die" or (asked == "die once" and self.server.log.count("started") == 1):
            os.kill(os.getpid(), signal.SIGKILL)
        if asked == "talk for ever":
            try:
                while True:
                    self.say("la ")
                    time.sleep(0.01)
            except OSError:
                self.server.log.note("client gone")

    def say(self, text: str) -> None:
        self.send({"choices": [{"index": 0, "delta": {"content": text}}]})

    def send(self, chunk: dict[str, object]) -> None:
        self.wfile.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
        self.wfile.flush()


def text_of(content: Any) -> str:
    if isinstance(content, str):
        return content
    return " ".join(str(piece.get("text", "")) for piece in content)


if __name__ == "__main__":
    main()
