"""Chat programs as a way in: Bargein where people already talk.

`contract` is what an adapter for a platform is written against, `hub` joins adapters with an
engine. Between them, the same for every platform: `conversation` (in), `showing` and `outbox`
(out), `access` (who may speak), `rows` (what must not be forgotten).
"""
