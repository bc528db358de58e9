"""Following an episode or a plan: its status, its events, and what tells that there is something new."""
