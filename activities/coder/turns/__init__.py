"""Model turns: what is asked, how the answer is read, and the journal that pays for each answer once."""
