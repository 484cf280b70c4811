"""The gateway: HTTP, server-sent events and WebSocket over the engine, for many people at once."""
