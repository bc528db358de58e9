"""Reviews of code, and judges for findings that rules alone cannot decide."""
