"""Reviews of code, and judgement of findings that rules alone cannot decide."""
