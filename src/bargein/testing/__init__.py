"""Tools to test what is built on Bargein, shipped with it and used by its own tests.

Nothing here is imported by the product. Import from the module that holds what you need:

- `seeded`: `run_seeded(scenario, seed)`, anything under a seeded scheduler on virtual time;
- `clock`: clocks for token deadlines, virtual or moved by hand;
- `gates`: hold a task at a named point;
- `invariants`: checkers of the laws;
- `fault_server`: a model provider that answers as badly as told.
"""
