"""`bargein config`: shows every setting, its value, and where the value came from; no secrets."""

import argparse
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from bargein.cli import trusting
from bargein.cli.granted import grants_file, in_lines, revoke_everywhere
from bargein.cli.trusting import left_out_in_words
from bargein.runtime.config import (
    DEFAULT,
    KEYS,
    Config,
    config_files,
    unknown_variables,
    user_file,
)
from bargein.runtime.settings import SETTINGS, Value


def main(given: argparse.Namespace, config: Config) -> int:
    if given.action == "trust":
        return trusting.main(given, config)
    if given.revoke is not None:
        revoke_everywhere(config, given.revoke)
        print(f"{given.revoke} revoked: such calls need approval again")
        return 0
    rows = [
        (setting.key, _shown(config[setting.key]), config.effective[setting.key].source)
        for setting in SETTINGS
    ]
    held = [name for name in KEYS if config.environment.get(name, "").strip()]
    rows += [(name, "set, not shown", f"${name}") for name in held]
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    for key, value, source in rows:
        mark = " " if source == DEFAULT else "*"
        print(f"{mark} {key:<{widths[0]}}  {value:<{min(widths[1], 40)}}  {source}")
    read = [str(path) for path in config_files(config.environment, Path.cwd())]
    print(f"\nread: {', '.join(read) or 'no file'}")
    print(f"your own file is {user_file(config.environment)}")
    for hook in config.hooks:
        print(f"hook on {', '.join(sorted(hook.on))}: {hook.command or _shown(hook.url)}")
    for request in config.left_out:
        print(left_out_in_words(request))
    for mistake in config.mcp.mistakes if config.mcp is not None else ():
        print(mistake)
    for folder, kept in grants_file(config).projects().items():
        print(f"\nallowed for always in {folder} (bargein config --revoke ID):")
        print("\n".join(in_lines(kept, "always")))
    for words in unknown_variables(config.environment):
        print(words)
    return 0


def _shown(value: Value | None) -> str:
    if value is None:
        return "(not set)"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ", ".join(value) or "(none)"
    text = " ".join(str(value).split())
    return _without_password(text) if "://" in text else text


def _without_password(address: str) -> str:
    """Returns the address without a password in it."""
    before, separator, url = address.rpartition("@http")
    url = f"http{url}" if separator else address
    prefix = f"{before}@" if separator else ""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        return f"{prefix}(not an address)"
    return prefix + urlunsplit((parts.scheme, host + port, parts.path, "", ""))
