from unittest.mock import Mock

from shop.cart import Cart


def test_cart_calls():
    cart = Mock(spec=Cart)
    cart.total.return_value = 5000
    cart.shipping.return_value = 0
    cart.add("pen", 100)
    cart.add.assert_called_with("pen", 100)
    assert cart.total() + cart.shipping() == 5000
