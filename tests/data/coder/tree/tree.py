def flatten(value):
    """Yield what is in lists within lists, from left to right, however deep they are."""
    for item in value:
        if hasattr(item, "__iter__"):
            yield from flatten(item)
        else:
            yield item


def depth(value):
    """Return how deep lists are nested; 0 for anything else."""
    if not isinstance(value, list):
        return 0
    return 1 + max(depth(item) for item in value)
