"""Signing in to MCP servers with OAuth: authorization code with PKCE.

`discovery` finds out where to sign in, `flow` does it and refreshes tokens, `kept` has the data of
a sign-in, `authorizer` gives tokens to the HTTP transport, `loopback` waits for the browser.
"""
