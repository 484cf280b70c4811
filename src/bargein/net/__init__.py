"""What clients of HTTP share, whoever they speak to: server-sent events, name lookups, and which
addresses are public."""
