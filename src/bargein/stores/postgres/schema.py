"""The tables, as numbered migrations, in the schema `bargein`.

A released migration never changes: the next change is a new one at the end. Each runs in a
transaction of its own, which also enters it in `migrations`. Old and new programs run side by side
while an operator upgrades one node after the other, so each migration says from which version on a
program can work with the tables as they are then (`readable_by`). It only adds; what an older
program still needs is dropped one release later. A program refuses a database whose tables it
cannot work with.

How the tables are laid out:

- `sessions.number` is given once and never again. All other rows of a session depend on it, so the
  session is gone when its row is. `doomed` lists what is to be swept up later, in slices.
- `sessions.epoch` and `sessions.owner` are set for roots. Other sessions have their root's.
- `epoch` is a sequence: what it gave is never given again, also if the transaction fails.
- `events` is partitioned by session, so that each index stays small and vacuum works in parts.
- `texts.words` is empty until a node has indexed the text at leisure (`search_sql`).
- `nodes` has a row for each node that is alive or was buried. An owner without a row is dead.
- `writers.generation` rises with each connection that a node writes on. Every write holds its row:
  so a statement of an earlier connection has either happened or never will (`writer`).
- `mail` has what one node sends to another.
- `cluster` has the secret that nodes show each other.
- `write_probe` has one row, which `/readyz` writes to see that it can be written.
- `gateway_*` are the tables of `bargein serve`: tokens, owners of sessions, kept answers, the audit
  log. Every node of a cluster uses the same.

Ids are compared byte by byte (`COLLATE "C"`), in the order that every other store has.
"""

from typing import NamedTuple

import asyncpg

from bargein.errors import UserError
from bargein.stores.postgres.connection import Connection

PARTITIONS = 16
NEEDED = 140000
LOCK_S = 30
# One number for "Bargein's tables are being changed".
MIGRATING = 0x42415247


class PostgresMigration(NamedTuple):
    name: str
    readable_by: int
    """The oldest program, counted in migrations it knows, that can use the tables after this."""
    statements: tuple[str, ...]


MIGRATIONS = (
    PostgresMigration(
        "sessions, nodes and mail",
        1,
        (
            "CREATE SEQUENCE bargein.epoch",
            """CREATE TABLE bargein.nodes (
                id text COLLATE "C" PRIMARY KEY,
                address text NOT NULL,
                version text NOT NULL,
                joined_at timestamptz NOT NULL DEFAULT clock_timestamp(),
                lease_until timestamptz NOT NULL,
                dead boolean NOT NULL DEFAULT false,
                died_at timestamptz
            ) WITH (fillfactor = 50)""",
            """CREATE TABLE bargein.writers (
                node text COLLATE "C" PRIMARY KEY,
                generation bigint NOT NULL
            ) WITH (fillfactor = 50)""",
            """CREATE TABLE bargein.sessions (
                number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
                id text COLLATE "C" NOT NULL UNIQUE,
                root bigint REFERENCES bargein.sessions ON DELETE CASCADE,
                epoch bigint NOT NULL,
                owner text COLLATE "C" NOT NULL,
                seq bigint NOT NULL,
                unfinished boolean NOT NULL,
                created_at float8 NOT NULL,
                updated_at float8 NOT NULL,
                title text NOT NULL,
                state bytea NOT NULL
            ) WITH (fillfactor = 70)""",
            """CREATE INDEX roots_by_update ON bargein.sessions (updated_at, id)
                WHERE root IS NULL""",
            """CREATE INDEX under_root ON bargein.sessions (root, updated_at, id)
                WHERE root IS NOT NULL""",
            "CREATE INDEX unfinished ON bargein.sessions (number) WHERE unfinished",
            """CREATE INDEX owners ON bargein.sessions (owner, id)
                WHERE root IS NULL AND unfinished""",
            """CREATE TABLE bargein.events (
                session bigint NOT NULL,
                seq bigint NOT NULL,
                at float8 NOT NULL,
                body bytea NOT NULL,
                PRIMARY KEY (session, seq)
            ) PARTITION BY HASH (session)""",
            *(
                f"""CREATE TABLE bargein.events_{part} PARTITION OF bargein.events
                FOR VALUES WITH (MODULUS {PARTITIONS}, REMAINDER {part})"""
                for part in range(PARTITIONS)
            ),
            """CREATE TABLE bargein.keys (
                session bigint NOT NULL,
                sender text COLLATE "C" NOT NULL,
                client_id text COLLATE "C" NOT NULL,
                message text NOT NULL,
                body_hash bytea NOT NULL,
                PRIMARY KEY (session, sender, client_id)
            )""",
            """CREATE TABLE bargein.texts (
                session bigint NOT NULL,
                seq bigint NOT NULL,
                at float8 NOT NULL,
                text text NOT NULL,
                words tsvector,
                PRIMARY KEY (session, seq)
            )""",
            "CREATE INDEX words ON bargein.texts USING gin (words)",
            "CREATE INDEX texts_to_index ON bargein.texts (session, seq) WHERE words IS NULL",
            "CREATE TABLE bargein.doomed (number bigint PRIMARY KEY)",
            """CREATE FUNCTION bargein.doom() RETURNS trigger LANGUAGE plpgsql AS $$
                BEGIN
                    INSERT INTO bargein.doomed VALUES (old.number);
                    RETURN NULL;
                END $$""",
            """CREATE TRIGGER doom AFTER DELETE ON bargein.sessions
                FOR EACH ROW EXECUTE FUNCTION bargein.doom()""",
            """CREATE FUNCTION bargein.refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
                BEGIN
                    RAISE EXCEPTION 'the log is append-only';
                END $$""",
            """CREATE TRIGGER events_are_not_changed BEFORE UPDATE ON bargein.events
                FOR EACH ROW EXECUTE FUNCTION bargein.refuse_change()""",
            """CREATE TABLE bargein.mail (
                number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
                recipient text COLLATE "C" NOT NULL,
                sender text COLLATE "C" NOT NULL,
                key text COLLATE "C" NOT NULL,
                answers text COLLATE "C" NOT NULL,
                body bytea NOT NULL,
                at timestamptz NOT NULL DEFAULT clock_timestamp(),
                UNIQUE (recipient, sender, key)
            )""",
        ),
    ),
    PostgresMigration(
        "the gateway's tables",
        1,
        (
            """CREATE TABLE bargein.gateway_tokens (
                id text COLLATE "C" PRIMARY KEY,
                principal text NOT NULL,
                hash bytea NOT NULL,
                created_at float8 NOT NULL,
                expires_at float8,
                revoked_at float8,
                read_only boolean NOT NULL,
                admin boolean NOT NULL,
                sessions text[],
                note text NOT NULL
            )""",
            """CREATE TABLE bargein.gateway_sessions (
                id text COLLATE "C" PRIMARY KEY,
                owner text NOT NULL,
                created_at float8 NOT NULL
            )""",
            """CREATE TABLE bargein.gateway_members (
                session text COLLATE "C" NOT NULL,
                principal text COLLATE "C" NOT NULL,
                role text NOT NULL,
                PRIMARY KEY (session, principal)
            )""",
            "CREATE INDEX gateway_sessions_by_owner ON bargein.gateway_sessions (owner)",
            "CREATE INDEX gateway_members_by_principal ON bargein.gateway_members (principal)",
            """CREATE TABLE bargein.gateway_consents (
                session text COLLATE "C" NOT NULL,
                principal text COLLATE "C" NOT NULL,
                consent text NOT NULL,
                PRIMARY KEY (session, principal)
            )""",
            """CREATE TABLE bargein.gateway_replies (
                principal text COLLATE "C" NOT NULL,
                key text COLLATE "C" NOT NULL,
                fingerprint bytea NOT NULL,
                status integer NOT NULL,
                body bytea NOT NULL,
                at float8 NOT NULL,
                PRIMARY KEY (principal, key)
            )""",
            "CREATE INDEX gateway_replies_by_age ON bargein.gateway_replies (at)",
            """CREATE TABLE bargein.gateway_tickets (
                digest bytea PRIMARY KEY,
                body bytea NOT NULL,
                expires_at float8 NOT NULL
            )""",
            """CREATE TABLE bargein.gateway_audit (
                number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
                at float8 NOT NULL,
                principal text NOT NULL,
                token text NOT NULL,
                address text NOT NULL,
                action text NOT NULL,
                session text NOT NULL,
                target text NOT NULL,
                status integer NOT NULL,
                detail text NOT NULL
            )""",
            "CREATE INDEX gateway_audit_by_age ON bargein.gateway_audit (at)",
            """CREATE TABLE bargein.gateway_retention (
                one integer PRIMARY KEY CHECK (one = 1),
                audit_before float8 NOT NULL
            )""",
            "INSERT INTO bargein.gateway_retention VALUES (1, 0)",
            """CREATE FUNCTION bargein.refuse_audit_change() RETURNS trigger LANGUAGE plpgsql AS $$
                BEGIN
                    IF tg_op = 'DELETE' THEN
                        IF old.at < (SELECT audit_before FROM bargein.gateway_retention) THEN
                            RETURN old;
                        END IF;
                    END IF;
                    RAISE EXCEPTION 'the audit log can only be added to';
                END $$""",
            """CREATE TRIGGER audit_is_kept BEFORE UPDATE OR DELETE ON bargein.gateway_audit
                FOR EACH ROW EXECUTE FUNCTION bargein.refuse_audit_change()""",
            """CREATE TRIGGER audit_is_not_emptied BEFORE TRUNCATE ON bargein.gateway_audit
                FOR EACH STATEMENT EXECUTE FUNCTION bargein.refuse_audit_change()""",
        ),
    ),
    PostgresMigration(
        "the secret of the nodes",
        1,
        (
            """CREATE TABLE bargein.cluster (
                one integer PRIMARY KEY CHECK (one = 1),
                secret text NOT NULL
            )""",
        ),
    ),
    PostgresMigration(
        "whether it takes writes",
        1,
        (
            """CREATE TABLE bargein.write_probe (
                one integer PRIMARY KEY CHECK (one = 1),
                at timestamptz NOT NULL
            )""",
        ),
    ),
)

VERSION = len(MIGRATIONS)

REACHED = "SELECT max(number), max(readable_by) FROM bargein.migrations"
EXISTS = "SELECT to_regclass('bargein.migrations') IS NOT NULL"
TABLE = """CREATE TABLE bargein.migrations (
    number integer PRIMARY KEY,
    name text NOT NULL,
    readable_by integer NOT NULL,
    at timestamptz NOT NULL DEFAULT clock_timestamp()
)"""


async def migrate(
    connection: Connection, migrations: tuple[PostgresMigration, ...] = MIGRATIONS
) -> None:
    """Run the migrations that the database lacks. One program does at a time; others wait."""
    await check_server(connection)
    if await reached(connection, len(migrations)) >= len(migrations):
        return
    for number, migration in enumerate(migrations, 1):
        async with connection.transaction():
            await connection.execute(f"SET LOCAL lock_timeout = '{LOCK_S}s'")
            await connection.execute(f"SET LOCAL idle_in_transaction_session_timeout = '{LOCK_S}s'")
            await connection.execute("SELECT pg_advisory_xact_lock($1)", MIGRATING)
            if await reached(connection, len(migrations)) >= number:
                continue
            if number == 1:
                await connection.execute("CREATE SCHEMA IF NOT EXISTS bargein")
                await connection.execute(TABLE)
            for statement in migration.statements:
                await connection.execute(statement)
            await connection.execute(
                "INSERT INTO bargein.migrations VALUES ($1, $2, $3)",
                number,
                migration.name,
                migration.readable_by,
            )


async def reached(connection: Connection, known: int) -> int:
    """How many migrations the database has; 0 for a new one. Raises `UserError` if a program that
    knows `known` of them cannot use it."""
    if not await connection.fetchval(EXISTS):
        return 0
    try:
        number, readable_by = await connection.fetchrow(REACHED) or (0, 0)
    except asyncpg.UndefinedTableError:
        return 0
    if (readable_by or 0) > known:
        raise UserError(
            f"was upgraded by a newer Bargein (migration {number}; this one knows {known}, and "
            f"{readable_by} are needed): update Bargein on this machine"
        )
    return int(number or 0)


async def check_server(connection: Connection) -> None:
    """Refuse a server that is too old, and a database that cannot keep every text."""
    version, shown, encoding = await connection.fetchrow(
        """SELECT current_setting('server_version_num')::int, current_setting('server_version'),
            pg_encoding_to_char(encoding) FROM pg_database WHERE datname = current_database()"""
    ) or (0, "", "")
    if version < NEEDED:
        raise UserError(f"is PostgreSQL {shown}, and 14 or newer is needed")
    if encoding != "UTF8":
        raise UserError(f"has the encoding {encoding}: create one with ENCODING 'UTF8'")
