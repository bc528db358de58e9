"""Looking at episodes and plans: the one that is meant, its status, its events, and what tells of something new."""
