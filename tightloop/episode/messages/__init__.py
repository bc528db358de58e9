"""The Markdown messages between planner and executor: layout, parsing, enforcement."""
