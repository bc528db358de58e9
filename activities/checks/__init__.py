"""Running the definition of done."""
