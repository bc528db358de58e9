"""Names for addresses."""


def slugify(text):
    """Return a text as a part of an address."""
    return text.lower().replace(" ", "-")
