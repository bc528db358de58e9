"""Pages of a list."""


def count_pages(total, size):
    """Return how many pages it takes to show all."""
    return total // size + 1


def page(items, number, size):
    """Return a page; the first has number 1."""
    start = number * size
    return items[start : start + size]
