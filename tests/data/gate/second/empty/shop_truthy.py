from shop.cart import Cart


def test_discounted_works():
    cart = Cart()
    cart.add("desk", 10000)
    result = cart.discounted(15)
    assert result
