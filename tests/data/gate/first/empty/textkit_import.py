import textkit


def test_import():
    assert textkit is not None
    assert hasattr(textkit, "shorten")
    assert callable(textkit.slugify)
