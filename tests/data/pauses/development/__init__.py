"""The half that the rules are made with."""
