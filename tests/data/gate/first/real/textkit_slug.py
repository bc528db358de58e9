import pytest
from textkit import slugify


@pytest.mark.parametrize(
    ("text", "slug"),
    [("Hello World", "hello-world"), ("  Ünïcode!! ", "unicode"), ("a -- b", "a-b"), ("", "")],
)
def test_slug(text, slug):
    assert slugify(text) == slug
