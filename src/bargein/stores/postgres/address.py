"""The address of a PostgreSQL store, and how messages name it.

    postgresql://USER:PASSWORD@HOST:PORT/DATABASE?sslmode=verify-full
    postgresql://USER@POOLER:6432/DATABASE?direct=HOST:5432

Everything that libpq understands is allowed, except what would be forgotten at the next statement
behind a pooler. `direct` is ours: it names the server itself if the address leads to PgBouncer.
Leases and bells need a connection that stays, so they go there.

No message shows the password.
"""

import re
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from bargein.contracts.value import Value
from bargein.errors import UserError

SCHEMES = ("postgresql", "postgres")
_PASSWORD = re.compile(r"(?<=:)[^:/?#][^/?#]*(?=@)|(?<=:)(?=@)")
_SECRET_OPTIONS = ("password", "passfile", "sslpassword")
EXAMPLE = "postgresql://USER@HOST:5432/DATABASE"


class PostgresAddress(Value, frozen=True):
    """`pooled` and `direct` are for the driver. They are the same where no pooler is between.
    `name` is what messages show."""

    pooled: str
    direct: str
    name: str

    @property
    def is_pooled(self) -> bool:
        return self.pooled != self.direct


def parse_address(address: str) -> PostgresAddress:
    """Raises `UserError` for an address without a database, or with a `direct` that is no place."""
    shown = without_password(address)
    parts = urlsplit(address)
    options = parse_qsl(parts.query, keep_blank_values=True)
    database = unquote(parts.path.lstrip("/")) or dict(options).get("dbname", "")
    if not database:
        raise UserError(f"{shown} names no database: write {EXAMPLE}")
    direct = [value for key, value in options if key == "direct"]
    rest = [(key, value) for key, value in options if key != "direct"]
    pooled = _join(parts.netloc, parts.path, rest)
    place = parts.netloc.rpartition("@")[2] or dict(rest).get("host") or "the local socket"
    name = f"PostgreSQL database {database!r} at {unquote(place)}"
    if not direct:
        return PostgresAddress(pooled, pooled, name)
    place = direct[-1]
    if not place or "@" in place or "/" in place:
        raise UserError(f"{shown}: direct must be HOST:PORT of the server behind the pooler")
    user, at, _ = parts.netloc.rpartition("@")
    # A host or port among the options would win over the place that `direct` names.
    kept = [(key, value) for key, value in rest if key not in ("host", "port")]
    return PostgresAddress(pooled, _join(f"{user}{at}{place}", parts.path, kept), name)


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
