"""Language models: asking one for a JSON object, and the gateway between an agent and its own model."""
