"""Real proxies in front of a server: nginx by default, nginx and Caddy as `deploy/` has them."""

from __future__ import annotations

import os
import re
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import trustme

DEPLOY = Path(__file__).parents[2] / "deploy"
NAME = "agents.example.org"
START_S = 20.0

# nginx waits for 60 s by default, and we say something every 15 s. Here both are shorter, and
# further apart, because the machine may be busy.
TIMEOUT_S = 2.5
PING_S = 0.1

BY_DEFAULT = """
server {{
    listen 127.0.0.1:{port};
    # All as it comes, but the time-outs, which are 60 s.
    proxy_read_timeout {timeout_ms}ms;
    proxy_send_timeout {timeout_ms}ms;
    location / {{ proxy_pass {url}; }}
}}
"""

NGINX = """
master_process off;
daemon off;
pid {home}/pid;
error_log {home}/error.log;
events {{}}
http {{
    access_log off;
    client_body_temp_path {home}/body;
    proxy_temp_path {home}/proxy;
    fastcgi_temp_path {home}/fastcgi;
    uwsgi_temp_path {home}/uwsgi;
    scgi_temp_path {home}/scgi;
    {servers}
}}
"""


@dataclass(frozen=True)
class Proxy:
    """`tls` is what a client has to trust; None without TLS. The name leads here by `port`."""

    url: str
    tls: ssl.SSLContext | None = None


def program(name: str) -> str:
    found = shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin")
    assert found is not None, f"{name} is not installed; .ci/run installs it"
    return found


@contextmanager
def nginx_by_default(url: str, home: Path) -> Iterator[Proxy]:
    port = free_port()
    servers = BY_DEFAULT.format(port=port, url=url, timeout_ms=int(TIMEOUT_S * 1000))
    with _nginx(servers, home, port):
        yield Proxy(f"http://127.0.0.1:{port}")


@contextmanager
def nginx_as_shipped(url: str, home: Path) -> Iterator[Proxy]:
    port = free_port()
    authority = trustme.CA()
    certificate = authority.issue_cert(NAME, "127.0.0.1")
    certificate.private_key_pem.write_to_path(home / "key.pem")
    for blob in certificate.cert_chain_pems:
        blob.write_to_path(home / "chain.pem", append=True)
    text = (DEPLOY / "nginx.conf").read_text()
    for pattern, changed in (
        (r"listen 443 ssl", f"listen 127.0.0.1:{port} ssl"),
        (r"server 127\.0\.0\.1:8484", f"server {url.removeprefix('http://')}"),
        (r"/etc/letsencrypt/\S+/fullchain\.pem", str(home / "chain.pem")),
        (r"/etc/letsencrypt/\S+/privkey\.pem", str(home / "key.pem")),
    ):
        text, count = re.subn(pattern, changed, text)
        assert count == 1, pattern
    trusted = ssl.create_default_context()
    authority.configure_trust(trusted)
    with _nginx(text, home, port):
        yield Proxy(f"https://127.0.0.1:{port}", trusted)


@contextmanager
def caddy_as_shipped(url: str, home: Path) -> Iterator[Proxy]:
    port = free_port()
    text = (DEPLOY / "Caddyfile").read_text()
    for pattern, changed in (
        (rf"(?m)^{re.escape(NAME)} \{{", f"http://127.0.0.1:{port} {{"),
        (r"127\.0\.0\.1:8484", url.removeprefix("http://")),
    ):
        text, count = re.subn(pattern, changed, text)
        assert count == 1, pattern
    config = home / "Caddyfile"
    config.write_text("{\n\tadmin off\n}\n" + text)
    command = [program("caddy"), "run", "--config", str(config), "--adapter", "caddyfile"]
    with _running(command, home, port):
        yield Proxy(f"http://127.0.0.1:{port}")


PROXIES = {
    "nginx by default": nginx_by_default,
    "deploy/nginx.conf": nginx_as_shipped,
    "deploy/Caddyfile": caddy_as_shipped,
}


@contextmanager
def _nginx(servers: str, home: Path, port: int) -> Iterator[None]:
    config = home / "nginx.conf"
    config.write_text(NGINX.format(home=home, servers=servers))
    with _running([program("nginx"), "-p", str(home), "-c", str(config)], home, port):
        yield


@contextmanager
def _running(command: list[str], home: Path, port: int) -> Iterator[None]:
    environment = {**os.environ, "XDG_DATA_HOME": str(home), "XDG_CONFIG_HOME": str(home)}
    log = home / "proxy.log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=environment)
    try:
        end = time.monotonic() + START_S
        while not _listens(port):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < end, log.read_text()
            time.sleep(0.01)
        yield
    finally:
        process.kill()
        process.wait()


def _listens(port: int) -> bool:
    with socket.socket() as trying:
        return trying.connect_ex(("127.0.0.1", port)) == 0


def free_port() -> int:
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        port: int = made.getsockname()[1]
        return port
