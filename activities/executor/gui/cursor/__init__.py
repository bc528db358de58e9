"""What Cursor tells of itself: its hooks and its transcripts."""
