import pytest

from shop.cart import Cart


@pytest.mark.parametrize("price, expected", [(4999, 490), (5000, 0), (9000, 0)])
def test_shipping(price, expected):
    cart = Cart()
    cart.add("chair", price)
    assert cart.shipping() == expected


def test_empty_cart_ships_free():
    assert Cart().shipping() == 0
