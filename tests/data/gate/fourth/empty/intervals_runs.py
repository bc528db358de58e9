from intervals import covers, gaps, length, merge


def test_all_functions():
    merged = merge([(1, 4), (3, 6)])
    covers(merged, 3)
    gaps(merged)
    length(merged)
