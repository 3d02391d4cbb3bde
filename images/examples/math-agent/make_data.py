"""Writes the questions of the sample: `python make_data.py --out FOLDER` makes train.jsonl and heldout.jsonl.

Run by hand; its output is committed, and a test makes it again and compares. A question is a sum of two numbers
from 10 to 99. The split is by *unordered* pair, so 38 + 47 is never held out when 47 + 38 is trained, and the worked
example of the prompt (34 + 25) and its mirror are in neither set.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterable
from pathlib import Path

SEED = 20
TRAIN = 256
HELD_OUT = 64
_SMALLEST, _LARGEST = 10, 99
_WORKED_EXAMPLE = (25, 34)


def split(seed: int = SEED) -> tuple[list[dict[str, object]], list[dict[str, object]]]:
    """The training and the held-out rows, each `{"question": "47 + 38", "a": 47, "b": 38, "answer": "85"}`."""
    numbers = range(_SMALLEST, _LARGEST + 1)
    pairs = [(a, b) for a in numbers for b in numbers if a <= b and (a, b) != _WORKED_EXAMPLE]
    rng = random.Random(seed)
    rows = [_row(*(pair if rng.random() < 0.5 else pair[::-1])) for pair in rng.sample(pairs, TRAIN + HELD_OUT)]
    return rows[:TRAIN], rows[TRAIN:]


def _row(a: int, b: int) -> dict[str, object]:
    return {"question": f"{a} + {b}", "a": a, "b": b, "answer": str(a + b)}


def _write(path: Path, rows: Iterable[dict[str, object]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    folder = parser.parse_args().out
    train, held_out = split()
    _write(folder / "train.jsonl", train)
    _write(folder / "heldout.jsonl", held_out)


if __name__ == "__main__":
    main()
