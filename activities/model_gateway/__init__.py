"""A loopback door between an agent and its model provider."""
