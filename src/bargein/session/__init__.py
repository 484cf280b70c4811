"""The session engine: sessions, inboxes, turns. It uses models, tools and stores by contract only.

Where to begin reading:

- `session.py`: what users call. `sending.py` and `watching.py` are its two directions.
- `actor.py`: one session in memory. It decides commands with `decide.py` and `rules/`.
- `turn.py` and `calls.py`: a turn, as its agent sees it, and its calls.
- `abort.py`: from the request to stop a turn to the receipt. `recovery.py`: after a crash.
- `journal.py`: how sessions write to the store.
- `engine.py`: all sessions of a process.
"""
