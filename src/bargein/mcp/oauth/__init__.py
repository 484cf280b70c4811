"""Signing in to MCP servers with OAuth: authorization code with PKCE.

`discovery` finds out where to sign in, `flow` does it and refreshes tokens, `kept` is what is kept
of it, `authorizer` is what the HTTP transport asks, `loopback` waits for the browser.
"""
