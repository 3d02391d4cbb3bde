"""The driver's output: the runner's bytes unchanged, the driver's own lines between."""

import io

from hypothesis import given
from hypothesis import strategies as st

from tuning_driver.console import LONGEST_LINE, Console


@given(st.binary(max_size=200), st.lists(st.integers(1, 20), max_size=20))
def test_bytes_come_out_as_they_went_in(data: bytes, sizes: list[int]) -> None:
    stream = io.BytesIO()
    console = Console(stream)
    rest = data
    for size in sizes:
        console.raw(rest[:size])
        rest = rest[size:]
    console.raw(rest)
    console.finish()
    assert stream.getvalue() in (data, data + b"\n")


def test_an_own_line_never_splits_a_line_of_the_runner() -> None:
    stream = io.BytesIO()
    console = Console(stream)
    text = "reward ✓ 0.5\n".encode()
    console.raw(b"first\n" + text[:8])
    console.say("Ray job is RUNNING")
    console.raw(text[8:])
    assert stream.getvalue().decode() == "first\ndriver: Ray job is RUNNING\nreward ✓ 0.5\n"


def test_an_endless_line_is_passed_on_between_characters() -> None:
    stream = io.BytesIO()
    console = Console(stream)
    console.raw(b"x" + "✓".encode() * LONGEST_LINE + "✓".encode()[:2])
    stream.getvalue().decode()
    assert len(stream.getvalue()) == 1 + 3 * LONGEST_LINE


def test_half_a_surrogate_pair_in_rays_words_is_replaced() -> None:
    stream = io.BytesIO()
    Console(stream).say("the job said \ud83d")
    assert stream.getvalue() == b"driver: the job said ?\n"
