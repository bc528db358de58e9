from textkit.slug import slugify, unique
from textkit.wrap import shorten, table

__all__ = ["shorten", "slugify", "table", "unique"]
