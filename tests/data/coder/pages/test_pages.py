from pages import count_pages, page


def test_full_pages_need_no_further_one():
    assert count_pages(20, 10) == 2
    assert count_pages(21, 10) == 3
    assert count_pages(0, 10) == 0


def test_the_first_page_begins_with_the_first_item():
    assert page([1, 2, 3, 4, 5], 1, 2) == [1, 2]
    assert page([1, 2, 3, 4, 5], 3, 2) == [5]
