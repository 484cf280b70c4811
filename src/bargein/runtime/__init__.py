"""The runtime joins models, tools and stores under a session engine, for every surface.

`Agent` (agent.py) describes what to run; `Engine` (engine.py) runs it. The terminal, the server and
`bargein.sync` are built on these two, and so is your program. This package imports no surface.
"""
