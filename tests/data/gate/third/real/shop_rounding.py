import pytest

from shop.cart import Cart


@pytest.fixture(params=[(199, 50, 100), (101, 10, 91), (5, 10, 5)])
def example(request):
    return request.param


def test_halves_are_rounded_up(example):
    price, percent, expected = example
    cart = Cart()
    cart.add("x", price)
    assert cart.discounted(percent) == expected
