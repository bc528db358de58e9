from shop.basket import Basket


def test_baskets_do_not_share_items():
    first = Basket()
    first.add("tea")
    assert Basket().items == {}


def test_merging_changes_neither_basket():
    first, second = Basket({"tea": 1}), Basket({"tea": 2, "jam": 1})
    assert first.merged(second).items == {"tea": 3, "jam": 1}
    assert first.items == {"tea": 1}
