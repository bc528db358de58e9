from hypothesis import given, settings, strategies as st

from textkit.slug import slugify


@settings(max_examples=200)
@given(st.text(max_size=80), st.integers(1, 30))
def test_slug_is_clean(text, longest):
    slug = slugify(text, longest)
    assert len(slug) <= longest
    assert not slug.startswith("-") and not slug.endswith("-")
    assert all(c.isalnum() and c.isascii() or c == "-" for c in slug)
    assert "--" not in slug
