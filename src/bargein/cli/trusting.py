"""Shows the user what a project asks for beyond tightening, and takes the verdict.

Only a person at a terminal can approve. Other runs leave it out, and say so in one line.
"""

import argparse
import os
import sys
import termios
import time

from bargein.contracts.visible import visible
from bargein.errors import UserError
from bargein.runtime.config import Config, trust_file
from bargein.runtime.project_trust import TrustRequest

APPROVES = "bargein config trust"
TRIES = 3
LINE_BYTES_MAX = 4096
QUESTION = """\
y  use it, until anything of it changes
n  leave it out, and do not ask again until it changes
Enter  leave it out this time
Use it? """


def waiting(config: Config) -> tuple[TrustRequest, ...]:
    """Returns what files of this project ask for and the user has not approved."""
    return config.left_out


def ask_at_start(config: Config) -> bool:
    """Asks, before the first prompt, about what the user has not judged yet, and says what is left
    out. Returns whether anything was approved; then the configuration must be read again."""
    file = trust_file(config.environment)
    approved = False
    for request in waiting(config):
        if not is_at_terminal() or file.verdict(request) is not None:
            tell_left_out(request)
        else:
            approved = _ask(config, request) or approved
    return approved


def tell_left_out(request: TrustRequest) -> None:
    print(f"bargein: {left_out_in_words(request)}", file=sys.stderr)


def left_out_in_words(request: TrustRequest) -> str:
    count = len(request.effects)
    which = f"{count} {request.kind} are" if count > 1 else f"1 of the {request.kind} is"
    return f"{request.source}: {which} left out until you approve them by  {APPROVES}"


def is_at_terminal() -> bool:
    return os.isatty(0) and os.isatty(2)


def _ask(config: Config, request: TrustRequest) -> bool:
    # Drop what was typed before the question was shown.
    termios.tcflush(0, termios.TCIFLUSH)
    print(f"This project asks for what only you can allow:\n\n{request.shown()}\n", file=sys.stderr)
    for _ in range(TRIES):
        print(QUESTION, end="", file=sys.stderr, flush=True)
        # Read one line and nothing after it.
        answer = os.read(0, LINE_BYTES_MAX).decode(errors="replace").strip().lower()
        if answer in ("y", "yes", "n", "no"):
            approved = answer[0] == "y"
            trust_file(config.environment).judge(request, approved=approved)
            print(file=sys.stderr)
            return approved
        if not answer:
            break
        print(
            f"{visible(answer[:20])!r} is not an answer; say y or n, or press Enter",
            file=sys.stderr,
        )
    tell_left_out(request)
    return False


def main(given: argparse.Namespace, config: Config) -> int:
    """`bargein config trust`."""
    file = trust_file(config.environment)
    if given.revoke_trust is not None:
        if not file.revoke(given.revoke_trust):
            raise UserError(
                f"there is no verdict {given.revoke_trust}; `{APPROVES} --list` lists them"
            )
        print(f"{given.revoke_trust} revoked: you will be asked again")
        return 0
    if given.list:
        return _list(config)
    requests = waiting(config)
    if not requests:
        print("nothing in this project waits for your approval")
        return 0
    if not is_at_terminal():
        shown = "\n\n".join(each.shown() for each in requests)
        print(shown)
        raise UserError("only a person at a terminal can approve this; run it in one")
    for request in requests:
        _ask(config, request)
    return 0


def _list(config: Config) -> int:
    for project, verdicts in trust_file(config.environment).verdicts().items():
        print(f"{project}:")
        for each in verdicts:
            said = "approved" if each.approved else "refused"
            day = time.strftime("%Y-%m-%d", time.localtime(each.at))
            print(f"  {each.id}  {said:<8}  {day}  {each.kind} in {each.source}")
    for request in waiting(config):
        print(f"waits for you ({APPROVES}):\n{request.shown()}")
    return 0
