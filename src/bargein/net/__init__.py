"""The parts that all clients of HTTP here share: server-sent events and name lookups."""
