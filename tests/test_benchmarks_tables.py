from tables import table


def test_numbers_stand_right_and_text_stands_left():
    assert table(("way", "MB/s"), [("a", "1"), ("longer", "12,345")]).splitlines() == [
        "| way    |   MB/s |",
        "|--------|-------:|",
        "| a      |      1 |",
        "| longer | 12,345 |",
    ]


def test_the_columns_of_text_can_be_named():
    assert table(("a", "b"), [("1", "xx")], text=(1,)).splitlines()[1:] == ["|--:|----|", "| 1 | xx |"]
