from shop.cart import Cart, Line


def test_same_article_is_one_line():
    cart = Cart()
    cart.add("pen", 100)
    cart.add("pen", 100, 2)
    cart.add("pen", 90)
    assert cart.lines == [Line("pen", 100, 3), Line("pen", 90, 1)]
