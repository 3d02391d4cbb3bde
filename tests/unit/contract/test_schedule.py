"""The tasks of each step: the same in every engine and every attempt."""

import pytest

from tuning_contract.schedule import schedule, target_steps


@pytest.mark.parametrize(
    ("epochs", "rows", "batch", "expected"),
    [
        (1, 20, 20, 1),
        (0.29, 100, 1, 29),  # as floats 28.999...
        (1.1, 100, 11, 10),
        (0.7, 30, 3, 7),
        (2.5, 7, 3, 5),
        (1e-05, 100_000, 1, 1),
        (0.5, 20, 20, 0),
    ],
)
def test_epochs_are_counted_as_the_decimal_that_was_written(epochs, rows, batch, expected):
    assert target_steps(rows, batch, epochs, None) == expected


def test_steps_are_taken_as_they_are_and_one_of_both_is_needed():
    assert target_steps(7, 3, None, 100) == 100
    with pytest.raises(ValueError, match="exactly one of `epochs` and `steps`"):
        target_steps(7, 3, None, None)


@pytest.mark.parametrize("order", ["Shuffle", "Sequential"])
def test_every_epoch_has_each_row_once_also_across_steps(order):
    drawn = [row for step in range(1, 8) for row in schedule("digest", 3, order, 7, 3, step)]
    epochs = [drawn[start : start + 7] for start in (0, 7, 14)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(7))] * 3
    assert (epochs[0] == epochs[1]) == (order == "Sequential")
