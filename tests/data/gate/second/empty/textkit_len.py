from textkit import slugify


def test_slug_length():
    slug = slugify("Hello World")
    assert len(slug) >= 0
    assert isinstance(slug, str)
    assert type(slug) is not int
