"""Nodes that share one database: how they reach each other."""
