"""The child: loads one model and serves it on loopback until its input ends. Run as a script.

It imports nothing of Bargein. Its parent writes one line of JSON to its input (`Order` in
`handshake.py`) and nothing more. When that pipe ends, because the parent closed it or died, the
child exits at once. Among the runtime's log output it writes one line that begins with MARK:
`ready` with facts about the model, or `failed`.
"""

import json
import os
import signal
import sys
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

MARK = b"\x1ebargein-local "

# The server stops when nothing refers to it.
_held: list[object] = []


def main() -> NoReturn:
    # While native code loads the model, a Python signal handler would have to wait.
    _die_by_signals()
    _be_killed_first()
    order = json.loads(sys.stdin.buffer.readline())
    try:
        facts = serve(order)
    except Exception as error:  # boundary: reported to the parent
        tell("failed", {"error": f"{type(error).__name__}: {error}"})
        os._exit(1)
    # The runtime has installed its own handlers, which end its work but not the process.
    _die_by_signals()
    tell("ready", facts)
    while os.read(0, 4096):
        pass
    os._exit(0)


def serve(order: dict[str, Any]) -> dict[str, Any]:
    """Starts the server, and queries its properties as the parent would."""
    xllamacpp = import_module("xllamacpp")
    parameters = xllamacpp.CommonParams()
    parameters.model.path = order["path"]
    parameters.model_alias = {order["name"]}
    parameters.hostnames = ["127.0.0.1"]
    parameters.port = 0
    parameters.api_keys = [order["key"]]
    parameters.ui = False
    parameters.endpoint_slots = False
    parameters.verbosity = 2
    parameters.n_ctx = order["context_tokens"]
    # The runtime checks for a cancel between batches, so their size decides how soon reading stops.
    parameters.n_batch = parameters.n_ubatch = order["batch_tokens"]
    parameters.n_parallel = order["requests_at_once"]
    parameters.kv_unified = True
    parameters.cache_ram_mib = order["cache_mib"]
    parameters.n_predict = order["output_tokens_max"]
    # It would load twice to estimate what fits into memory; the memory asked for here is small.
    parameters.fit_params = False
    threads = order["threads"] or spare_cpus()
    parameters.cpuparams.n_threads = threads
    parameters.cpuparams_batch.n_threads = threads
    for name, value in order["sampling"].items():
        setattr(parameters.sampling, name, value)
    server = xllamacpp.Server(parameters)
    _held.append(server)
    address = server.listening_address
    properties = get(address, "/props", order["key"])
    template = properties.get("chat_template_caps") or {}
    return {
        "address": address,
        "context_tokens": properties["default_generation_settings"]["n_ctx"],
        "reads_tools": bool(template.get("supports_tools") and template.get("supports_tool_calls")),
        "sees_images": bool((properties.get("modalities") or {}).get("vision")),
    }


def get(address: str, path: str, key: str) -> dict[str, Any]:
    # Imported here, because the parent imports this module too, for MARK.
    from http.client import HTTPConnection

    connection = HTTPConnection(address.removeprefix("http://"), timeout=30)
    try:
        connection.request("GET", path, headers={"Authorization": f"Bearer {key}"})
        response = connection.getresponse()
        if response.status != 200:
            raise RuntimeError(f"the runtime answered {response.status} to {path}")
        answer: dict[str, Any] = json.loads(response.read())
        return answer
    finally:
        connection.close()


def tell(what: str, facts: dict[str, Any]) -> None:
    """Writes the line in one call: other threads of the runtime log to the same pipe."""
    line = b"\n" + MARK + json.dumps({"what": what, **facts}).encode() + b"\n"
    os.write(1, line)


def spare_cpus() -> int:
    """Returns half of the CPUs that this process may use, at most 8.

    The runtime's threads spin while they wait for each other at every step. If another process
    occupies the CPU of one of them, all of them slow to a crawl.
    """
    try:
        count = len(os.sched_getaffinity(0))
    except AttributeError:
        count = os.cpu_count() or 1
    quota = _cgroup_cpus()
    if quota is not None:
        count = min(count, max(1, int(quota)))
    return max(1, min(count // 2, 8))


def _cgroup_cpus() -> float | None:
    """Returns the smallest CPU quota of our cgroup and its parents; None if there is none."""
    found: list[float] = []
    try:
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            if line.startswith("0::"):
                place = Path("/sys/fs/cgroup" + line[3:])
                for folder in (place, *place.parents):
                    limit = folder / "cpu.max"
                    if limit.is_file():
                        quota, period = limit.read_text().split()
                        if quota != "max":
                            found.append(int(quota) / int(period))
    except (OSError, ValueError):
        return None
    return min(found, default=None)


def _die_by_signals() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def _be_killed_first() -> None:
    """If memory runs out, this process should die before the one with the conversation."""
    try:
        Path("/proc/self/oom_score_adj").write_text("500")
    except OSError:
        pass


if __name__ == "__main__":
    main()
