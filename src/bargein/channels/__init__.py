"""Channels: brings sessions to the chat platforms where people already talk.

`contract` is the interface of an adapter for a platform; `hub` joins adapters with an engine. The
modules between them are the same for every platform: `conversation` takes what people say,
`showing` and `outbox` send what the session says, `access` decides who may speak, and `rows` stores
what a restart needs.
"""
