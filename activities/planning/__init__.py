"""What comes next: the planner port and its adapters."""
