"""The HTTP connections between nodes that share one database."""
