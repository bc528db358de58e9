"""A loopback gateway between an agent and its model provider."""
