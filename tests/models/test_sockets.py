"""Sockets that any thread can cut, and that close nothing but themselves."""

from __future__ import annotations

import gc
import os
import socket
import threading
import warnings
from collections.abc import Iterator

import pytest

from bargein.models.sockets import Sockets
from tests.models.harness import open_sockets

ADDRESS = (socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", 0))


@pytest.fixture(autouse=True)
def nothing_of_others_is_closed_meanwhile() -> None:
    """Descriptors are counted here, and their numbers known beforehand."""
    gc.collect()


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(30)
        yield server


def connect(sockets: Sockets, listener: socket.socket) -> tuple[socket.socket, socket.socket]:
    made = sockets.create(ADDRESS)
    made.connect(listener.getsockname())
    peer, _ = listener.accept()
    peer.settimeout(30)
    return made, peer


def send_for_ever(connection: socket.socket) -> None:
    while True:
        connection.send(b"x" * 65536)


def read_all(connection: socket.socket) -> None:
    while connection.recv(1024 * 1024):
        pass


def test_a_cut_is_seen_by_the_other_side_before_the_owner_closes(
    listener: socket.socket,
) -> None:
    sockets = Sockets()
    made, peer = connect(sockets, listener)
    sockets.cut()
    assert peer.recv(1) == b""
    assert len(sockets) == 0
    made.close()
    peer.close()


def test_the_owners_close_ends_the_connection_once_released(listener: socket.socket) -> None:
    sockets = Sockets()
    made, peer = connect(sockets, listener)
    sockets.release()
    made.sendall(b"x")
    made.close()
    assert peer.recv(10) == b"x"
    assert peer.recv(10) == b""
    peer.close()


def test_a_cut_discards_what_the_other_side_does_not_read(listener: socket.socket) -> None:
    sockets = Sockets()
    made, peer = connect(sockets, listener)
    made.setblocking(False)
    with pytest.raises(BlockingIOError):
        send_for_ever(made)
    sockets.cut()
    made.close()
    with pytest.raises(ConnectionResetError):
        read_all(peer)
    peer.close()


def test_what_is_made_after_the_cut_is_cut_too(listener: socket.socket) -> None:
    sockets = Sockets()
    sockets.cut()
    made = sockets.create(ADDRESS)
    assert len(sockets) == 0
    made.close()


def test_losers_of_a_race_to_connect_are_let_go(listener: socket.socket) -> None:
    sockets = Sockets()
    before = open_sockets()
    loser = sockets.create(ADDRESS)
    made, peer = connect(sockets, listener)
    loser.close()
    sockets.keep_open_only()
    assert len(sockets) == 1
    assert open_sockets() == before + 3
    sockets.cut()
    made.close()
    peer.close()


def test_a_number_that_was_given_to_another_is_not_closed(listener: socket.socket) -> None:
    """As uvloop leaves it: the descriptor closed, the Python socket unaware."""
    sockets = Sockets()
    made, peer = connect(sockets, listener)
    number = made.fileno()
    sockets.release()
    os.close(number)
    stranger = os.dup(peer.fileno())
    assert stranger == number
    made.close()
    assert os.fstat(stranger)
    os.close(stranger)
    peer.close()


def test_nor_when_it_is_collected_as_garbage() -> None:
    sockets = Sockets()
    made = sockets.create(ADDRESS)
    number = made.fileno()
    sockets.release()
    os.close(number)
    with socket.socket() as stranger:
        assert stranger.fileno() == number
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            del made
            gc.collect()
        assert os.fstat(number)


def test_cutting_from_many_threads_while_sockets_are_made_and_closed() -> None:
    """Whoever takes a duplicate closes it: none is left, none is closed twice."""
    before = open_sockets()
    for _ in range(200):
        sockets = Sockets()
        start = threading.Barrier(3)

        def cut(sockets: Sockets = sockets, start: threading.Barrier = start) -> None:
            start.wait()
            sockets.cut()

        threads = [threading.Thread(target=cut) for _ in range(2)]
        for thread in threads:
            thread.start()
        start.wait()
        made = [sockets.create(ADDRESS) for _ in range(5)]
        sockets.release()
        for thread in threads:
            thread.join()
        for each in made:
            each.close()
        assert len(sockets) == 0
    assert open_sockets() == before
