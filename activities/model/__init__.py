"""Language models: asking a model for a JSON object, and the gateway between an agent and its own model."""
