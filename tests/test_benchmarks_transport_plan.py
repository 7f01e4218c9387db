import pytest

from transport_plan import Plan, portion_bytes


@pytest.mark.parametrize(("dtype", "size"), [("uint8", 2 * 3 * 25), ("float32", 4 * 2 * 3 * 25)])
def test_a_portion_is_its_rows_of_pixels(dtype, size):
    known = {"rows": 8, "side": 5, "dtypes": [], "arms": [], "rounds": 1, "seconds": 1.0, "warmup_steps": 0}
    assert portion_bytes(Plan(ranks=4, **known), dtype) == size
