"""Where sessions are kept: in memory for tests and simulations, in a SQLite file for real.

Every store keeps the contract of `bargein.contracts.store`, and is held to it by one conformance
suite. Import from the modules: `memory`, `sqlite`, `lock`, `backup`.
"""
