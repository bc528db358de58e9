import pytest

from shop.cart import Cart, OutOfStock


def test_message_names_what_is_left():
    cart = Cart(stock={"ink": 1})
    with pytest.raises(OutOfStock, match="only 1 of ink are left"):
        cart.add("ink", 250, 2)
    assert cart.is_empty()
