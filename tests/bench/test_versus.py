from __future__ import annotations

from bench.measure import Row, table
from bench.versus import compare, number, read_table


def test_it_reads_the_table_that_a_bench_prints() -> None:
    rows = [Row("a stop", ours=3e-3, baseline=2e-3, bar=2.0), Row("memory", 1234.0, unit="KiB")]
    text = f"\nkernel: today\n\n{table([row.cells() for row in rows])}\n\na note\n"
    assert dict(read_table(text)) == {"a stop": 1.5, "memory": 1234.0}


def test_numbers_have_units() -> None:
    assert [number(cell) for cell in ("2 ms", "1.50 x", "1,200 us", "1.2e+03 KiB", "met")] == [
        2e-3,
        1.5,
        1200e-6,
        1.2e3,
        None,
    ]


def test_a_row_that_became_slower_is_missed() -> None:
    old = {"a": [1.0, 1.1, 0.9], "b": [2.0], "gone": [1.0]}
    new = {"a": [1.2, 1.0, 1.3], "b": [2.0], "made": [1.0]}
    slower, same = compare(old, new)
    assert (slower[3:], same[-1]) == (("1.200", "10.0%", "missed"), "met")
