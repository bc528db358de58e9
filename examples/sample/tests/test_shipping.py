from orders.shipping import cost


def test_large_orders_at_home_are_free():
    assert cost("DE", 6000) == 0


def test_small_orders_at_home_cost():
    assert cost("DE", 1000) == 490


def test_abroad_always_costs():
    assert cost("US", 99_000) == 2490
