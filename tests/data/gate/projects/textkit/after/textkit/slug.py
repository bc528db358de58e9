"""Names for addresses."""

import re
import unicodedata

LONGEST = 60
_OTHER = re.compile(r"[^a-z0-9]+")


def slugify(text, longest=LONGEST):
    """Return a text as a part of an address: lower case ASCII, digits and single dashes."""
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
    slug = _OTHER.sub("-", plain.lower()).strip("-")
    return slug[:longest].rstrip("-")


def unique(text, taken):
    """Return a slug that is not taken: with a number if need be."""
    slug = slugify(text)
    if slug not in taken:
        return slug
    number = 2
    while f"{slug}-{number}" in taken:
        number += 1
    return f"{slug}-{number}"
