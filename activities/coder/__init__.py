"""The built-in coder's activities: model turns, tools, and the journal that makes both idempotent."""
