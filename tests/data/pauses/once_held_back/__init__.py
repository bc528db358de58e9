"""A half that was held back until its figures were taken; the rules were made better with it since."""
