"""What clients of HTTP share, whoever they speak to: server-sent events and name lookups."""
