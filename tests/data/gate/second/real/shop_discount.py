from hypothesis import given, strategies as st

from shop.cart import Cart


@given(st.lists(st.integers(1, 10_000), max_size=5), st.integers(0, 100))
def test_discount_is_between_zero_and_total(prices, percent):
    cart = Cart()
    for i, price in enumerate(prices):
        cart.add(f"item{i}", price)
    assert 0 <= cart.discounted(percent) <= cart.total()
    assert cart.discounted(0) == cart.total()
    assert cart.discounted(100) == 0
