"""The environment of a server's process: a few variables that programs need, and its own `env`."""

from collections.abc import Mapping
from typing import Final

NAMES: Final = (
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "TERM", "LANG", "LANGUAGE", "TZ", "TMPDIR"),
    *("XDG_RUNTIME_DIR", "XDG_CACHE_HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS", "REQUESTS_CA_BUNDLE"),
)


def minimal(environment: Mapping[str, str], own: Mapping[str, str]) -> dict[str, str]:
    kept = {
        name: value
        for name, value in environment.items()
        if (name in NAMES or name.startswith("LC_")) and not value.startswith("()")
    }
    return {**kept, **own}
