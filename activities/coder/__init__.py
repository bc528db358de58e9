"""The doing of the built-in coder: model turns, tools, and the journal that makes both happen once."""
