"""Progress lines: what is being done, and how many seconds each step took.

Called by every step of the cluster. Lines go to standard error, so that `status -o json` stays readable by a program.
"""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

HEARTBEAT_SECONDS = 20.0


def say(line: str) -> None:
    """Print one progress line at once."""
    print(line, file=sys.stderr, flush=True)


@contextmanager
def step(name: str, *, announce: bool = False) -> Iterator[None]:
    """Time a step and print its seconds at the end, also when it fails.

    Args:
        name: What is done, in a few words.
        announce: Print a line at the start too, and a sign of life every 20 seconds: for steps of minutes.
    """
    begun = time.monotonic()
    over = threading.Event()
    if announce:
        say(f"         {name} ...")
        threading.Thread(target=_heartbeat, args=(name, begun, over), daemon=True).start()
    outcome = "failed: "
    try:
        yield
        outcome = ""
    finally:
        over.set()
        say(f"{time.monotonic() - begun:7.1f} s {outcome}{name}")


def _heartbeat(name: str, begun: float, over: threading.Event) -> None:
    while not over.wait(HEARTBEAT_SECONDS):
        say(f"         {name} ... {time.monotonic() - begun:.0f} s so far")
