"""Chaos on real nodes: processes, sockets and a real PostgreSQL, broken by a seed.

Three nodes run on one PostgreSQL, each behind a relay of its own. Clients send messages and stop
turns at any node. Meanwhile nodes are killed and frozen, the network between a node and the
database is cut in one direction or both, and PostgreSQL is killed. At the end everything is let on,
and a checker reads the clients' histories, the logs, and a journal of effects that is kept outside
the database.

`./dev chaos --faults 500 --seed 7` runs it; `tests/chaos` runs a slice.
"""
