"""Servers that let other programs use tightloop: HTTP API, MCP, web page and Web UI sign-in."""
