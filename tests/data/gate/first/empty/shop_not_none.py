from shop.cart import Cart


def test_total_is_there():
    cart = Cart()
    cart.add("pen", 100, 2)
    total = cart.total()
    assert total is not None
    assert isinstance(total, int)
