"""Intervals of whole numbers, as pairs of start and end."""


def merge(intervals):
    """Return intervals that do not overlap."""
    result = []
    for start, end in intervals:
        if result and start < result[-1][1]:
            result[-1] = (result[-1][0], end)
        else:
            result.append((start, end))
    return result
