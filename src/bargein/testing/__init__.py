"""Tools for testing programs built on Bargein; Bargein's own tests use them too.

The product imports nothing from here. Import from the module that has what you need:

- `seeded`: `run_seeded(scenario, seed)` runs anything under a seeded scheduler on virtual time;
- `scripted`: a model that plays a script;
- `simulate`: your agent, or whole random sessions, in a simulated world that checks the laws;
- `clock`: clocks for token deadlines, virtual or moved by hand;
- `gates`: hold a task at a named point;
- `invariants`, `engine_invariants`: checkers of the laws;
- `fault_server`: a model provider that misbehaves on command;
- `store_conformance`: checks for a store of your own;
- `channel_conformance`: checks for an adapter to a chat platform, and a platform in memory;
- `chat_services`: servers on loopback that speak as chat platforms do.
"""
