from orders.catalog import Catalog


def test_a_catalog_is_a_mapping():
    catalog = Catalog({"pen": 150, "book": 1200})
    assert dict(catalog) == {"pen": 150, "book": 1200}
    assert catalog.names() == ["book", "pen"]


def test_an_unknown_article_has_no_price():
    assert Catalog({}).price("pen") is None
