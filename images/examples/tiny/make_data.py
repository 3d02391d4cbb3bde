"""Writes the questions of the tiny sample: `python make_data.py --out FOLDER` makes train.jsonl and heldout.jsonl.

Run by hand; its output is committed, and a test makes it again and compares. The questions are the 25 sums of two
numbers from 0 to 4. The model's warm-up sees all of them; the five held-out ones (whole unordered pairs) are left
out of reinforcement learning only. A model this small learns a table, so expect a gain on the trained rows alone.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from pathlib import Path

LARGEST = 4
# Unordered; two of them have a mirror, so five rows.
HELD_OUT = ((0, 2), (1, 3), (2, 2))


def rows() -> list[dict[str, object]]:
    """All questions, each `{"question": "What is 1 + 2?", "a": 1, "b": 2, "answer": "3"}`."""
    numbers = range(LARGEST + 1)
    return [{"question": f"What is {a} + {b}?", "a": a, "b": b, "answer": str(a + b)} for a in numbers for b in numbers]


def split() -> tuple[list[dict[str, object]], list[dict[str, object]]]:
    """The training and the held-out rows."""
    held_out = [row for row in rows() if tuple(sorted((row["a"], row["b"]))) in HELD_OUT]  # type: ignore[type-var]
    return [row for row in rows() if row not in held_out], held_out


def _write(path: Path, content: Iterable[dict[str, object]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in content))


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
