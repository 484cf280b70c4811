"""`bargein cluster status`: the nodes that share a PostgreSQL store."""

import argparse
import sys
import time
from datetime import timedelta
from typing import TYPE_CHECKING

from bargein.cli.chat.paint import harmless
from bargein.cli.event_loop import run_in_loop
from bargein.errors import UserError
from bargein.runtime.config import Config

if TYPE_CHECKING:
    from bargein.contracts.store import NodeRow


def main(given: argparse.Namespace, config: Config) -> int:
    return run_in_loop(_status, config)


async def _status(config: Config) -> int:
    from bargein import stores

    address = config.text("store")
    if not stores.is_postgres(address):
        raise UserError(
            "a cluster shares a PostgreSQL store, and none is set: set BARGEIN_STORE to "
            "postgresql://USER@HOST/DATABASE"
        )
    from bargein.stores.postgres import PostgresStore

    store = await PostgresStore.open(address, joins=False)
    try:
        nodes, promised = await store.nodes(), await store.replication()
    finally:
        await store.aclose()
    for node in nodes:
        print(harmless(_line(node)))
    if not nodes:
        print("no node uses it", file=sys.stderr)
    print(f"{store.name}: {promised}", file=sys.stderr)
    return 0


def _line(node: "NodeRow") -> str:
    age = timedelta(seconds=int(time.time() - node.joined_at))
    if node.dead:
        life = "dead"
    elif node.lease_s > 0:
        life = f"alive, lease {node.lease_s:.1f} s"
    else:
        life = f"silent, lease over since {-node.lease_s:.1f} s"
    work = f"{node.unfinished} at work"
    where = f"  {node.address}" if node.address else ""
    return f"{node.id}  {life}  {work}  up {age}  bargein {node.version}{where}"
