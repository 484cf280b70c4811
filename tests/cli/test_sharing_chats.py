"""A chat is opened to a guest, from a terminal, and what the terminals then show."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from bargein.cli.chat.guests import qr_lines
from tests.cli.screen import ESCAPE, Screen
from tests.cli.test_host import SCRIPT, Hosted


@pytest.fixture
def hosted(tmp_path: Path, host_possible: None) -> Iterator[Hosted]:
    made = Hosted(tmp_path)
    yield made
    made.close()


def shown_address(screen: Screen) -> tuple[str, str]:
    """The address and the fingerprint, as a person reads them."""
    screen.wait_for("/unshare ends all of it")
    address = re.search(r"https://\S+", screen.text)
    fingerprint = re.search(r"([0-9A-F]{2}:){31}[0-9A-F]{2}", screen.text)
    assert address is not None
    assert fingerprint is not None
    return address.group(), fingerprint.group()


def test_a_chat_is_shared_and_every_message_says_who_wrote_it(hosted: Hosted) -> None:
    one = hosted.open("--share")
    address, fingerprint = shown_address(one)
    assert all(line in one.text for line in qr_lines(address)), one.text
    guest = hosted.open("attach", address, "--fingerprint", fingerprint, folder="guest")
    guest.wait_ready()
    guest.enter("count")
    one.wait_for("> guest: count")
    one.wait_for("for ever and ever")
    assert "guest: " not in guest.text
    guest.type(ESCAPE)
    one.wait_for("by guest")
    one.wait_ready()
    one.enter("quick")
    guest.wait_for("> operator: quick")
    one.enter("/share list")
    one.wait_for("guest: reads and talks")
    one.enter("/share approve guest")
    one.wait_for("guest may approve calls now")
    one.enter("/share approve Anna")
    one.wait_for("there is no guest 'Anna'")
    again = hosted.open("attach", address, "--fingerprint", fingerprint, folder="thief")
    again.wait_for("each works once")
    one.enter("\x15/unshare")
    one.wait_for("not shared any more; out: guest")
    guest.wait_for("expired or was revoked")
    one.enter("/unshare")
    one.wait_for("is not shared")


def test_where_there_is_no_host_it_says_so(tmp_path: Path) -> None:
    screen = Screen("--share", home=tmp_path, script=SCRIPT)
    try:
        screen.wait_for("only a host or a server shares sessions")
    finally:
        screen.close()


def test_a_code_is_drawn_in_whole_lines() -> None:
    lines = qr_lines("https://192.168.1.20:43211/#join=abcdefghijklmnopqrstuv")
    assert len({len(line) for line in lines}) == 1
    assert len(lines) * 2 - len(lines[0]) in (0, 1)
    assert set("".join(lines)) <= set("█▀▄ ")
    assert set(lines[0]) == {"█"}
