"""Nothing that a model says or asks for can control the terminal, wherever it is shown."""

import json
import os
import signal
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.cli.conftest import Open
from tests.cli.screen import Screen

NAMED = "<U+001B>]0;owned<U+0007><U+001B>[2J<U+009B>5n"
EVIL = "\\u001b]0;owned\\u0007\\u001b[2J\\u009b5n"
SCRIPT = f"""
repeat = true
[[answers]]
when = "^do"
steps = [
    {{ do = "say", text = "safe {EVIL} words" }},
    {{ do = "call", name = "read_file", arguments = {{ path = "gone {EVIL} file" }} }},
]
[[answers]]
when = "^do"
steps = [
    {{ do = "call", name = "terminal", arguments = {{ command = ": {EVIL} ; sleep 60" }} }},
]
"""


def is_harmless(screen: Screen) -> bool:
    return not any(each in screen.raw for each in (b"\x1b]", b"\x1b[2J", b"\xc2\x9b", b"\x07"))


def done(home: Path, *arguments: str) -> Screen:
    screen = Screen(*arguments, home=home, script=SCRIPT)
    assert screen.exit_code() == 0, screen.text
    return screen


def test_a_run_on_a_terminal_and_what_is_kept_of_it(tmp_path: Path) -> None:
    run = Screen("run", "--session", "it", "--timeout", "3", "do it", home=tmp_path, script=SCRIPT)
    assert run.exit_code() == 124
    assert is_harmless(run)
    assert "safe 5n words" in run.text
    assert f"read_file  gone {NAMED} file ..." in run.text
    assert f"terminal  : {NAMED} ; sleep 60 ..." in run.text
    for arguments in (("show", "it"), ("search", "safe"), ("list",), ("export", "it")):
        assert is_harmless(done(tmp_path, "sessions", *arguments)), arguments


@pytest.mark.parametrize("terminal", ["dumb", "xterm-256color"])
def test_a_chat_and_its_end(chat: Open, terminal: str) -> None:
    screen = chat(script=SCRIPT, TERM=terminal)
    screen.wait_for("/help")
    screen.enter("do it")
    screen.wait_for(f"terminal  : {NAMED} ; sleep 60")
    os.kill(screen.pid, signal.SIGTERM)
    screen.wait_for("Shutting down")
    screen.exit_code()
    assert is_harmless(screen), screen.raw


class Answers(BaseHTTPRequestHandler):
    """A server that is no friend: its words are EVIL, whatever is asked."""

    status = 200

    def do_POST(self) -> None:
        words = json.loads(f'"who {EVIL} am I"')
        problem = {"status": 403, "code": "forbidden", "detail": words}
        joined = {"token": words, "session": "s", "principal": words}
        body = json.dumps(joined if self.status == 200 else problem).encode()
        self.send_response(self.status)
        self.send_header("Location", "/elsewhere")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        self.do_POST()

    def log_message(self, *_given: object) -> None:
        pass


@pytest.mark.parametrize("status", [200, 307, 403])
def test_the_answers_of_a_server_elsewhere(tmp_path: Path, status: int) -> None:
    handler = type("Handler", (Answers,), {"status": status})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        address = f"http://127.0.0.1:{server.server_address[1]}/#join=x"
        try:
            screen = Screen("attach", address, home=tmp_path, script=SCRIPT)
            screen.wait_for("5n am I" if status == 200 else "bargein attach:")
            if status != 200:
                assert screen.exit_code() != 0
            assert is_harmless(screen), screen.raw
            screen.close()
        finally:
            server.shutdown()
            thread.join()


MCP_SERVER = f"""
import json, sys
EVIL = "{EVIL}"
for line in sys.stdin:
    asked = json.loads(line)
    schema, name = {{"type": "object"}}, "a" + EVIL
    tools = [{{"name": name}}, {{"name": name, "title": name, "inputSchema": schema}}]
    info = {{"name": EVIL, "version": EVIL}}
    answers = {{
        "initialize": {{"protocolVersion": "2025-06-18", "capabilities": {{"tools": {{}}}}}},
        "tools/list": {{"tools": tools}},
    }}
    answer = answers.get(asked["method"])
    if "id" in asked:
        said = {{"error": {{"code": 1, "message": EVIL}}}} if answer is None else {{
            "result": {{**answer, "serverInfo": info}}
        }}
        print(json.dumps({{"jsonrpc": "2.0", "id": asked["id"], **said}}), flush=True)
print(EVIL, file=sys.stderr)
"""


@pytest.mark.parametrize("command", [("mcp", "test"), ("run", "say it")], ids=" ".join)
def test_the_tools_of_an_mcp_server(tmp_path: Path, command: tuple[str, ...]) -> None:
    (tmp_path / "server.py").write_text(MCP_SERVER)
    configured = tmp_path / ".config" / "bargein" / "mcp.json"
    configured.parent.mkdir(parents=True)
    spec = {"command": sys.executable, "args": [str(tmp_path / "server.py")]}
    configured.write_text(json.dumps({"mcpServers": {"evil": spec}}))
    screen = Screen(*command, home=tmp_path, script='[[answers]]\nsteps=[{do="say",text="Well."}]')
    screen.wait_for("1 tools" if command[0] == "mcp" else "Well.")
    assert screen.exit_code() == 0
    assert "a tool is left out" in screen.text
    assert is_harmless(screen), screen.raw


def test_what_a_command_logs() -> None:
    program = (
        "import logging\n"
        "from bargein.cli.event_loop import run_in_loop\n"
        "async def main():\n"
        f"    logging.getLogger('any').warning('it said %s', '{EVIL}')\n"
        "run_in_loop(main)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stderr == b"it said 5n\n"
