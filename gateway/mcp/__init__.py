"""Model Context Protocol: tools and resources for coding agents and assistants."""
