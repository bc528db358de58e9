from unittest.mock import patch

from shop.cart import Cart


def test_total_with_patch():
    with patch.object(Cart, "total", return_value=1000) as total:
        cart = Cart()
        cart.add("pen", 100)
        assert cart.total() == 1000
        total.assert_called_once()
