import pytest

from orders.basket import Basket, Discount, Percent
from orders.catalog import Catalog


@pytest.fixture
def catalog():
    return Catalog({"pen": 150, "book": 1200})


def test_the_total_is_the_sum_of_the_lines(catalog):
    assert Basket(catalog).add("pen", 2).add("book").total() == 1500


def test_an_unknown_article_is_refused(catalog):
    with pytest.raises(KeyError):
        Basket(catalog).add("sword")


def test_the_base_discount_must_be_implemented():
    with pytest.raises(NotImplementedError):
        Discount().apply(100)


def test_a_percentage_is_taken_off():
    assert Percent(10).apply(1000) == 900
