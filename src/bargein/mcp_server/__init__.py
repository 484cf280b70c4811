"""Bargein as an MCP server: a tool by which another agent gives a task to ours, and can stop it.

`turns` runs a turn for a call, `server` speaks the protocol in both eras, `pipes` is standard input
and output. docs/mcp.md says what is promised.
"""
