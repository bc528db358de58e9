"""Intervals of whole numbers, as pairs of start and end."""

from bisect import bisect_right


def merge(intervals):
    """Return intervals that neither overlap nor touch, in order."""
    result = []
    for start, end in sorted(intervals):
        if end < start:
            raise ValueError(f"{start} to {end} ends before it starts")
        if result and start <= result[-1][1]:
            result[-1] = (result[-1][0], max(end, result[-1][1]))
        else:
            result.append((start, end))
    return result


def covers(merged, number):
    """Return whether a number lies in one of the merged intervals; the end does not belong to it."""
    at = bisect_right(merged, (number, float("inf"))) - 1
    return at >= 0 and merged[at][0] <= number < merged[at][1]


def gaps(merged):
    """Return what lies between merged intervals."""
    return [(one[1], other[0]) for one, other in zip(merged, merged[1:])]


def length(intervals):
    """Return how many numbers the intervals have together."""
    return sum(end - start for start, end in merge(intervals))
