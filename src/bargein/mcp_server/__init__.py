"""Bargein as an MCP server: the agent is a tool that another agent can use, and really stop.

`turns` runs a turn for a call, `server` speaks the protocol in both eras, `pipes` is standard input
and output. docs/mcp.md says what is promised.
"""
