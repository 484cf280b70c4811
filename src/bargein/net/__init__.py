"""The parts that all clients of HTTP here share: server-sent events, name lookups, and which
addresses are public."""
