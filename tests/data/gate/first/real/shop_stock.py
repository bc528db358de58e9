import pytest
from shop.cart import Cart, OutOfStock


@pytest.fixture
def cart():
    return Cart(stock={"pen": 2})


def test_no_more_than_there_is(cart):
    cart.add("pen", 100)
    cart.add("pen", 100)
    with pytest.raises(OutOfStock):
        cart.add("pen", 100)
    assert cart.lines[0].quantity == 2
