"""Servers through which other programs use tightloop: HTTP API, MCP, web page and Web UI sign-in."""
