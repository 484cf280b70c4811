"""Counts the connections of each principal and address, and bounds them.

A connection is a stranger's until a request on it shows a valid token; from then on it belongs to
that principal. Strangers are bounded in total and for each address. Over the bound, a new one
closes a stranger of the address that has the most: the oldest on which no request was ever
answered, or else the one idle for longest. So somebody who opens connections and sends nothing
neither keeps others out nor ends a health check. A stranger never closes a principal's connection.
Each principal has a bound of its own, and over it loses the connection idle for longest.
"""

from collections.abc import Callable
from ipaddress import IPv6Address, ip_address

from starlette.types import Scope

from bargein.server.limits import GatewayLimits
from bargein.server.problems import Code, Problem

_CONNECTION = "bargein.connection"


class Connection:
    """One connection, as the rest of the server sees it. `close` ends it politely, `abort` at once;
    `is_idle` says whether no request is being answered on it. `by_door`: it came by the owner's
    door. `for_guests`: it came by the address of shared chats."""

    __slots__ = (
        "_connections",
        "abort",
        "answered",
        "by_door",
        "close",
        "for_guests",
        "group",
        "is_idle",
        "principal",
    )

    def __init__(
        self,
        connections: "Connections",
        address: str,
        *,
        close: Callable[[], None],
        abort: Callable[[], None],
        is_idle: Callable[[], bool],
        by_door: bool = False,
        for_guests: bool = False,
    ) -> None:
        self._connections: Connections | None = connections
        self.by_door = by_door
        self.for_guests = for_guests
        self.group = _group(address)
        self.close = close
        self.abort = abort
        self.is_idle = is_idle
        self.principal: str | None = None
        self.answered = False

    def belongs_to(self, principal: str) -> None:
        """Called for each request with a valid token. Raises `Problem` if the principal may have no
        more connections."""
        if self.principal != principal and self._connections is not None:
            self._connections.recognise(self, principal)

    def used(self) -> None:
        """Called when a request was answered."""
        self.answered = True
        if self._connections is not None:
            self._connections.renew(self)

    def lost(self) -> None:
        """Called when the connection has ended. A request may still run; it counts no longer."""
        if self._connections is not None:
            self._connections.forget(self)
            self._connections = None
        self.close = self.abort = _nothing
        self.is_idle = _always


def _nothing() -> None:
    pass


def _always() -> bool:
    return True


def connection_of(scope: Scope) -> Connection | None:
    """Returns the request's connection, or None if another server runs the app (as in tests)."""
    found: Connection | None = scope.get(_CONNECTION)
    return found


def put_into(scope: Scope, connection: Connection) -> None:
    scope[_CONNECTION] = connection


class Connections:
    """`crowded` tells addresses that many people share: those of trusted proxies."""

    def __init__(self, limits: GatewayLimits, crowded: Callable[[str], bool]) -> None:
        self._limits = limits
        self._crowded = crowded
        # Dicts keep their order: the first has been unused for longest.
        self._strangers: dict[str, dict[Connection, None]] = {}
        self._stranger_count = 0
        self._known: dict[str, dict[Connection, None]] = {}

    def add(self, connection: Connection) -> None:
        group, limits = connection.group, self._limits
        mine = self._strangers.setdefault(group, {})
        mine[connection] = None
        self._stranger_count += 1
        if len(mine) > limits.strangers_per_address_max and not self._crowded(group):
            self._make_room(group, connection)
        elif self._stranger_count > limits.strangers_max:
            most = max(self._strangers, key=lambda each: len(self._strangers[each]))
            self._make_room(most, connection)

    def _make_room(self, group: str, newcomer: Connection) -> None:
        strangers = self._strangers[group]
        silent = (each for each in strangers if not each.answered and each is not newcomer)
        oldest = next(silent, None) or next(iter(strangers))
        self.forget(oldest)
        # A polite close would wait for a peer that may read nothing.
        oldest.abort()

    def recognise(self, connection: Connection, principal: str) -> None:
        if len(self._known.get(principal, ())) >= self._limits.connections_max:
            # If this raises, the connection stays a stranger's and counts as one.
            self._drop_idle(self._known[principal], principal)
        self.forget(connection)
        connection.principal = principal
        self._known.setdefault(principal, {})[connection] = None

    def _drop_idle(self, mine: dict[Connection, None], principal: str) -> None:
        idle = next((each for each in mine if each.is_idle()), None)
        if idle is None:
            raise Problem(
                Code.TOO_MANY,
                f"{len(mine)} connections of {principal} are in use, which is the limit; "
                "close a connection",
                retry_after_s=1,
            )
        self.forget(idle)
        idle.close()

    def renew(self, connection: Connection) -> None:
        principal = connection.principal
        table = self._strangers if principal is None else self._known
        mine = table.get(connection.group if principal is None else principal, {})
        if connection in mine:
            del mine[connection]
            mine[connection] = None

    def forget(self, connection: Connection) -> None:
        principal = connection.principal
        table = self._strangers if principal is None else self._known
        name = connection.group if principal is None else principal
        mine = table.get(name, {})
        if connection in mine:
            del mine[connection]
            self._stranger_count -= principal is None
            if not mine:
                del table[name]


def _group(address: str) -> str:
    """Returns the IPv6 network of 64 bits, in which one person has any number of addresses, or else
    the address."""
    try:
        parsed = ip_address(address)
    except ValueError:
        return address
    if isinstance(parsed, IPv6Address) and parsed.ipv4_mapped is None:
        return str(IPv6Address(int(parsed) >> 64 << 64))
    return str(parsed)
