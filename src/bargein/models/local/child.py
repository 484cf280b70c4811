"""The child: loads one model and serves it on loopback until its input ends. Run as a script.

It imports nothing of Bargein. Its parent writes one line of JSON to its input (see `Order` in
`runtime.py`) and then nothing more; when that pipe ends, because the parent closed it or is gone
in whatever way, the child is gone at once. To its output, among what the runtime logs, it writes
one line that begins with MARK: `ready` with what was found out about the model, or `failed`.
"""

import json
import os
import signal
import sys
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

MARK = b"\x1ebargein-local "

# A server that nothing refers to stops.
_held: list[object] = []


def main() -> NoReturn:
    # While native code loads the model, Python's own handler would wait for it to end.
    _die_by_signals()
    _be_killed_first()
    order = json.loads(sys.stdin.buffer.readline())
    try:
        facts = serve(order)
    except Exception as error:  # boundary: the parent is told, in words
        tell("failed", {"error": f"{type(error).__name__}: {error}"})
        os._exit(1)
    # The runtime has put its own handlers in place, which end its work but not the process.
    _die_by_signals()
    tell("ready", facts)
    while os.read(0, 4096):
        pass
    os._exit(0)


def serve(order: dict[str, Any]) -> dict[str, Any]:
    """Start the server, and ask it about itself the way the parent will."""
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
    # How soon reading stops is decided by the size of a batch: the runtime looks in between.
    parameters.n_batch = parameters.n_ubatch = order["batch_tokens"]
    parameters.n_parallel = order["requests_at_once"]
    parameters.kv_unified = True
    parameters.cache_ram_mib = order["cache_mib"]
    parameters.n_predict = order["output_tokens_max"]
    # It would load twice to guess how much fits into memory; what is asked for here is small.
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
    # Here, because the parent imports this module too, for the mark.
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
    """One write, on a line of its own: the runtime logs to the same pipe from other threads."""
    line = b"\n" + MARK + json.dumps({"what": what, **facts}).encode() + b"\n"
    os.write(1, line)


def spare_cpus() -> int:
    """Half of what this process may use, and 8 at most.

    The runtime's threads wait for each other at every step, spinning. If one of them has to wait
    for its processor, because something else runs there too, all of them come to a crawl.
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
    """The smallest CPU quota of our cgroup and those above it; None if there is none."""
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
    """If memory runs out, better this process than the one that has the user's conversation."""
    try:
        Path("/proc/self/oom_score_adj").write_text("500")
    except OSError:
        pass


if __name__ == "__main__":
    main()
