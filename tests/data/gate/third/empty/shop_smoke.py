import pytest

from shop.cart import Cart


@pytest.mark.parametrize("percent", [0, 10, 50, 100])
def test_discount_runs(percent):
    cart = Cart()
    cart.add("pen", 100, 3)
    price = cart.discounted(percent)
    assert isinstance(price, (int, float))
