"""From what is set to what the tools are given: their bounds, and which calls are asked about."""

from collections.abc import Iterator

import msgspec

from bargein.cli.config import Config
from bargein.cli.settings import SETTINGS
from bargein.errors import UserError
from bargein.tools import DEFAULT_POLICY, Decision, Policy, Rule, ToolSettings

PREFIX = "tools."


def tool_settings_of(config: Config) -> ToolSettings:
    keys = [setting.key for setting in SETTINGS if setting.key.startswith(PREFIX)]
    values = {key.removeprefix(PREFIX): config[key] for key in keys}
    return msgspec.convert(values, ToolSettings)


def policy_of(config: Config) -> Policy:
    return DEFAULT_POLICY.before(_rules(config))


def _rules(config: Config) -> Iterator[Rule]:
    for decision in (Decision.DENY, Decision.ASK, Decision.ALLOW):
        key = f"approval.{decision}"
        for entry in config.texts(key):
            tool, _, pattern = entry.strip().partition(" ")
            try:
                yield Rule(decision, tool, pattern.strip())
            except ValueError as error:
                where = config.effective[key].source
                raise UserError(f"{where}: {key} has {entry!r}: {error}") from None
