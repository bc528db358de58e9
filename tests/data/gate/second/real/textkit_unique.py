from textkit import unique


def test_unique_counts_up():
    taken = set()
    for expected in ("my-post", "my-post-2", "my-post-3"):
        slug = unique("My Post!", taken)
        assert slug == expected
        taken.add(slug)
