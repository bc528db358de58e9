"""Texts that fit."""

MARK = "..."


def shorten(text, width):
    """Return a text that is at most `width` long, cut at a space where there is one."""
    if width < len(MARK):
        raise ValueError(f"width {width} is smaller than the mark")
    if len(text) <= width:
        return text
    kept = text[: width - len(MARK) + 1]
    head, space, _ = kept.rpartition(" ")
    return (head if space else kept[:-1]) + MARK


def table(rows):
    """Return rows with their columns aligned."""
    if not rows:
        return ""
    widths = [max(len(str(cell)) for cell in column) for column in zip(*rows)]
    lines = []
    for row in rows:
        cells = [str(cell).ljust(width) for cell, width in zip(row, widths)]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)
