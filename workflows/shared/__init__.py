"""What both workflows use."""
