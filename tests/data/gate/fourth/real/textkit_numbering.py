from textkit import unique


def test_first_free_number_is_taken():
    assert unique("News", {"news", "news-2", "news-4"}) == "news-3"
    assert unique("News", set()) == "news"
