"""`bargein attach URL`: uses a server elsewhere from this terminal. Work there goes on when the
terminal leaves."""

import argparse
import os
import sys
from collections.abc import Callable
from getpass import getpass

from bargein.cli.attached import AttachedEngine
from bargein.cli.chat import converse
from bargein.cli.chat.any_engine import AnyEngine
from bargein.cli.chat.paint import harmless
from bargein.cli.event_loop import run_in_loop
from bargein.client.address import parse_address
from bargein.errors import UserError
from bargein.runtime.config import TOKEN_VARIABLE, Config

TAKEN = """you are {name} here; the invitation is used up. To come back, give the address with
#token={token}"""


def main(given: argparse.Namespace, config: Config) -> int:
    # All of it is looked at before the screen is taken.
    address = parse_address(given.address, given.fingerprint)
    invited_to = ""
    token, resume = address.token or config.environment.get(TOKEN_VARIABLE), given.resume
    if address.code is not None:
        from bargein.client.joining import join

        joined = run_in_loop(join, address)
        token, resume = joined.token, joined.session
        invited_to = joined.session
        print(harmless(TAKEN.format(name=joined.principal, token=token)), file=sys.stderr)
    if not token and address.unix is None:
        token = _asked()

    address_alone = given.address.partition("#")[0]

    def open_engine(config: Config, on_notice: Callable[[str], object]) -> AnyEngine:
        return AttachedEngine(
            address_alone,
            where=str(address.unix or address.url),
            token=token,
            fingerprint=given.fingerprint,
            on_notice=on_notice,
            invited_to=invited_to,
        )

    come_back = f"bargein attach {address_alone}"
    if given.fingerprint:
        come_back += f" --fingerprint {given.fingerprint}"
    return converse(
        config,
        resume=resume,
        go_on=given.go_on,
        come_back=harmless(come_back),
        open_engine=open_engine,
    )


def _asked() -> str:
    if not os.isatty(0):
        raise UserError(
            f"which token? Give the address with #token=... behind it, or set {TOKEN_VARIABLE}"
        )
    return getpass("token: ")
