"""Code reviews, and judges for findings that rules alone cannot decide."""
