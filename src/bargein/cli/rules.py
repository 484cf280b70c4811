"""From what is set to what an agent is given: budgets, the tools' bounds, and which calls are asked
about."""

from collections.abc import Iterator

import msgspec

from bargein.cli.config import Config
from bargein.cli.settings import SETTINGS
from bargein.contracts.budget import Budget
from bargein.errors import UserError
from bargein.tools import DEFAULT_POLICY, Decision, Policy, Rule, ToolSettings

PREFIX = "tools."


def tool_settings_of(config: Config) -> ToolSettings:
    keys = [setting.key for setting in SETTINGS if setting.key.startswith(PREFIX)]
    values = {key.removeprefix(PREFIX): config[key] for key in keys}
    return msgspec.convert(values, ToolSettings)


def budget_of(config: Config, prefix: str) -> Budget:
    values = {kind: config[f"{prefix}.{kind}"] for kind in Budget.__struct_fields__}
    return msgspec.convert(values, Budget)


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
