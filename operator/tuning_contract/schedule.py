"""Which rows of the dataset make up which step.

One pure function, so that every engine and every attempt draws the same tasks: a resumed run neither
repeats nor skips a task. The samplers of engines only replay it.
"""

import hashlib
import math
from fractions import Fraction
from functools import lru_cache
from typing import Literal

Order = Literal["Shuffle", "Sequential"]


def target_steps(rows: int, batch_size: int, epochs: float | None, steps: int | None) -> int:
    """Steps of the whole run: `steps`, or floor(epochs x rows / batch_size), with `epochs` as the decimal it reads."""
    if steps is not None:
        return steps
    if epochs is None:
        raise ValueError("set exactly one of `epochs` and `steps`")
    # As floats 0.29 x 100 is 28.999..., and the last step would be lost.
    return math.floor(Fraction(str(epochs)) * rows / batch_size)


def schedule(dataset_digest: str, seed: int, order: Order, rows: int, batch_size: int, step: int) -> tuple[int, ...]:
    """Row numbers of one step.

    Args:
        dataset_digest: identity of the dataset's content; another dataset is shuffled otherwise.
        seed: the run's seed.
        order: Shuffle draws a new permutation for each epoch, Sequential keeps the file's order.
        rows: number of rows of the dataset, at least 1.
        batch_size: tasks per step.
        step: number of the step, from 1.

    Returns:
        `batch_size` row numbers in 0 <= number < rows. A batch that crosses the end of an epoch goes on with
        the next one.
    """
    if rows < 1 or batch_size < 1 or step < 1:
        raise ValueError(f"rows, batch_size and step must be at least 1, not {rows}, {batch_size}, {step}")
    first = (step - 1) * batch_size
    chosen = []
    for position in range(first, first + batch_size):
        epoch, place = divmod(position, rows)
        chosen.append(place if order == "Sequential" else _permutation(dataset_digest, seed, rows, epoch)[place])
    return tuple(chosen)


@lru_cache(maxsize=4)
def _permutation(dataset_digest: str, seed: int, rows: int, epoch: int) -> tuple[int, ...]:
    """All rows, sorted by a keyed hash: the same on every machine and Python version."""
    key = hashlib.sha256(f"{dataset_digest}:{seed}:{epoch}".encode()).digest()
    return tuple(
        sorted(range(rows), key=lambda row: hashlib.blake2b(row.to_bytes(8), key=key, digest_size=16).digest())
    )


def turn_seed(run_seed: int, episode: str, attempt: int, turn: int) -> int:
    """Seed of the sampling noise of one model turn: 0 <= seed < 2**63.

    It depends on nothing but the turn's identity, so the composition of a batch changes only float rounding.
    """
    digest = hashlib.blake2b(f"{run_seed}:{episode}:{attempt}:{turn}".encode(), digest_size=8).digest()
    return int.from_bytes(digest) >> 1
