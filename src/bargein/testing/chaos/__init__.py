"""Chaos on real nodes: processes, sockets and a real PostgreSQL, broken by a seed.

Three nodes run on one PostgreSQL, each behind a relay of its own, on a network that the run makes
for itself. Clients send messages and stop turns at any node. Meanwhile nodes are killed, frozen and
replaced, packets are lost in one direction, clocks jump, and the database is killed, filled up and
replaced by its standby. At the end everything is let on, and a checker reads the clients'
histories, the logs, and a journal of effects that is kept outside the database.

    network.py       namespaces for nodes, and packets lost in one direction
    database.py      the primary and its standby; pooler.py: PgBouncer
    relay.py         connections that are reset, silent, or deaf in one direction
    node.py          a node's program; node_process.py: the same as the run sees it
    clients.py       clients, and the answers that they got
    faults.py        the faults, one after the other
    checker.py       what must be true afterwards
    run.py           the whole run

`./dev chaos --faults 500 --seed 7` runs it; `tests/chaos` runs a slice.
"""
