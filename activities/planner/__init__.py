"""The planner: its port and its adapters."""
