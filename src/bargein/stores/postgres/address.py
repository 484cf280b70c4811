"""The address of a PostgreSQL store, and how messages name it.

    postgresql://USER:PASSWORD@HOST:PORT/DATABASE?sslmode=verify-full
    postgresql://USER@POOLER:6432/DATABASE?direct=HOST:5432

Everything that libpq understands is allowed, except what would be forgotten at the next statement
behind a pooler. `direct` is ours: it names the server itself if the address leads to PgBouncer.
Leases and bells need a connection that stays, so they go there. `replica=HOST:PORT` is ours too:
a standby that may answer lists and searches.

No message shows the password.
"""

import re
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from bargein.contracts.value import Value
from bargein.errors import UserError

SCHEMES = ("postgresql", "postgres")
_PASSWORD = re.compile(r"(?<=:)[^:/?#][^/?#]*(?=@)|(?<=:)(?=@)")
_SECRET_OPTIONS = ("password", "passfile", "sslpassword")
OUR_OPTIONS = ("direct", "replica")
EXAMPLE = "postgresql://USER@HOST:5432/DATABASE"


class PostgresAddress(Value, frozen=True):
    """`pooled` and `direct` are for the driver. They are the same where no pooler is between.
    `name` is what messages show. `replica` is empty if there is none."""

    pooled: str
    direct: str
    name: str
    replica: str = ""

    @property
    def is_pooled(self) -> bool:
        return self.pooled != self.direct


def parse_address(address: str) -> PostgresAddress:
    """Raises `UserError` for an address without a database, or with a `direct` or `replica` that is
    no place."""
    shown = without_password(address)
    parts = urlsplit(address)
    options = parse_qsl(parts.query, keep_blank_values=True)
    database = unquote(parts.path.lstrip("/")) or dict(options).get("dbname", "")
    if not database:
        raise UserError(f"{shown} names no database: write {EXAMPLE}")
    ours = {key: value for key, value in options if key in OUR_OPTIONS}
    rest = [(key, value) for key, value in options if key not in OUR_OPTIONS]
    pooled = _join(parts.netloc, parts.path, rest)
    place = parts.netloc.rpartition("@")[2] or dict(rest).get("host") or "the local socket"
    name = f"PostgreSQL database {database!r} at {unquote(place)}"
    user, at, _ = parts.netloc.rpartition("@")
    # A host or port among the options would win over the place that is named.
    kept = [(key, value) for key, value in rest if key not in ("host", "port")]

    def at_place(option: str, what: str) -> str:
        place = ours[option]
        if not place or "@" in place or "/" in place:
            raise UserError(f"{shown}: {option} must be HOST:PORT of {what}")
        return _join(f"{user}{at}{place}", parts.path, kept)

    direct = at_place("direct", "the server behind the pooler") if "direct" in ours else pooled
    replica = at_place("replica", "a standby") if "replica" in ours else ""
    return PostgresAddress(pooled, direct, name, replica)


def host_of(address: str) -> str:
    """Returns the first host that an address of PostgreSQL names; "" for a local socket."""
    place = urlsplit(address).netloc.rpartition("@")[2].split(",")[0]
    return urlsplit(f"//{place}").hostname or "" if place else ""


def without_password(address: str) -> str:
    """The address as messages may show it."""
    shown = _PASSWORD.sub("***", address)
    for option in _SECRET_OPTIONS:
        shown = re.sub(rf"(?<=[?&]{option}=)[^&]*", "***", shown)
    return shown


def is_postgres(address: str) -> bool:
    return address.partition("://")[0].lower() in SCHEMES


def _join(place: str, path: str, options: list[tuple[str, str]]) -> str:
    query = urlencode(options, quote_via=quote)
    return f"postgresql://{place}{path}?{query}" if query else f"postgresql://{place}{path}"
