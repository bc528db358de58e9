from textkit import slugify, unique


def test_slug_is_stable():
    assert slugify("Hello World") == slugify("Hello World")
    assert unique("a", {"a"}) == unique("a", {"a"})
