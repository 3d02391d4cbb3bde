"""`python -m tuning_runner.stop_hook`: the preStop hook of the Ray containers.

Asks the attempt's runner to stop and waits until it has written its last byte, so that the pod does not go before. It
never fails: a hook that does would only add an Event. Standard library only, since the kubelet runs it in a container
that is busy. Not here: the stopping itself (`supervision`, `stopping`).
"""

import os
import sys
import time
from collections.abc import Mapping

from tuning_contract import environment
from tuning_runner.location import run_directory, run_document_text

_POLL_SECONDS = 0.2
_GRACE_SECONDS = 120.0


def ask_and_wait(variables: Mapping[str, str]) -> str:
    """Ask for a stop if an attempt runs, and wait for its end or until the grace is over; what came of it in words."""
    attempt = int(variables[environment.ATTEMPT])
    directory = run_directory(variables, run_document_text(variables))
    if not directory.started(attempt).exists():
        return f"attempt {attempt} has not begun"
    if directory.stopped(attempt).exists():
        return f"attempt {attempt} has ended"
    began = time.monotonic()
    deadline = began + float(variables.get(environment.STOP_GRACE_SECONDS) or _GRACE_SECONDS)
    directory.stop_request(attempt).touch()
    while not directory.stopped(attempt).exists():
        if time.monotonic() >= deadline:
            return f"attempt {attempt} has not stopped in {time.monotonic() - began:.0f} s"
        time.sleep(_POLL_SECONDS)
    return f"attempt {attempt} has stopped after {time.monotonic() - began:.1f} s"


def main() -> None:
    """Whatever happens, the exit code is 0."""
    try:
        said = ask_and_wait(os.environ)
    except Exception as error:
        said = f"no stop was asked for: {type(error).__name__}: {error}"
    sys.stderr.write(f"stop hook: {said}\n")


if __name__ == "__main__":
    main()
