"""Activities of the built-in coder: model turns, tools, and the journal that makes both idempotent."""
