"""Model Context Protocol (MCP): tools and resources for coding agents and assistants."""
