"""Whether the training has come to a standstill: it finishes no step, no evaluation and no checkpoint any more.

`follow` shows it every progress that it could read. Pure but for its clock. The limit is the user's; without one it is
learned from the run itself, since a step takes a second in one run and an hour in another. Not here: what follows from
a standstill (`verdict`).
"""

import time
from collections.abc import Callable

from tuning_contract.progress import Progress

FIRST_LIMIT = 7200.0
"""Seconds, while too few intervals were seen to know the run: models are loaded and judged in that time, too."""
LEAST_LIMIT = 1800.0
"""Seconds; the least limit that is learned."""
SLOWER = 10
"""So many times the slowest interval is still no standstill."""
KNOWN_AFTER = 3
"""Intervals after which the run is known."""
LONGEST_LOOK = 60.0
"""Seconds that may count between two looks: nobody knows what happened while the sidecar did not answer, or while this
very process stood still with its node."""


class StallWatch:
    """Begins to count at its first look, so a driver that follows a lost one starts with all of its patience.

    Args:
        limit: seconds; None: learned.
        clock: seconds that only grow.
    """

    def __init__(self, limit: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._fixed, self._clock = limit, clock
        self._seen: tuple[float, ...] | None = None
        self._step = 0
        self._quiet = 0.0
        self._looked = self._moved = clock()
        self._intervals = 0
        self._slowest = 0.0
        self.words = ""
        """Why it counts as stalled, what was seen and what to do; empty while it does not."""

    def look(self, progress: Progress) -> None:
        """Judge the newest progress; sets `words`."""
        now = self._clock()
        seen = (progress.updated_at, progress.step, progress.checkpoint_saved_at)
        self._quiet += min(now - self._looked, LONGEST_LOOK)
        self._looked = now
        # A sidecar that has just started may not have read the file yet: that is no news.
        if self._seen is None or (seen != self._seen and any(seen)):
            self._note_news(seen, now)
            self._step = progress.step
        pace = progress.values.get("step_seconds", 0.0), progress.evaluation_seconds
        self._slowest = max(self._slowest, *pace)
        self.words = self._describe(progress) if self._quiet >= self._limit else ""

    def _note_news(self, seen: tuple[float, ...], now: float) -> None:
        # From the start to the first news models are loaded: no interval to learn from.
        if self._seen is not None and any(self._seen):
            # Each held-out set is judged by the base model first, and one may take much longer than those before it.
            self._intervals += self._step > 0
            self._slowest = max(self._slowest, now - self._moved)
        self._seen, self._moved, self._quiet = seen, now, 0.0

    @property
    def _limit(self) -> float:
        if self._fixed is not None:
            return self._fixed
        return max(LEAST_LIMIT if self._intervals >= KNOWN_AFTER else FIRST_LIMIT, SLOWER * self._slowest)

    def _describe(self, progress: Progress) -> str:
        reached = f"the last was step {progress.step} of {progress.target_steps}" if progress.step else "there was none"
        if self._fixed is not None:
            why = f"limit {self._limit:.0f} s, from deadlines.stallSeconds"
        elif self._slowest:
            why = f"limit {self._limit:.0f} s, learned from the slowest so far, {self._slowest:.0f} s"
        else:
            why = f"limit {self._limit:.0f} s, until steps have shown how long they take"
        return (
            f"no step, evaluation or checkpoint was finished for {self._quiet:.0f} s ({why}); {reached}. "
            "The end of the runner's log tells what it waits for; if a step or an evaluation takes longer than that by "
            "itself, set deadlines.stallSeconds above it"
        )
