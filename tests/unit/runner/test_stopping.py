"""The request to stop, where the main thread does not hear it at once."""

import os
import subprocess
import sys

from tests.unit.runner.documents import REPOSITORY

LOST_IN_A_FINALIZER = """
import os, signal, time
from tuning_runner.stopping import Stop, StopError

class Finalized:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.1)

stop = Stop()
stop.listen()
stop.unsaved = True
try:
    del [Finalized()][0]
    print("lost", flush=True)
    time.sleep(60)
    print("never heard", flush=True)
except StopError:
    stop.begin_ending()
    print("heard", flush=True)
"""


def test_a_request_that_python_drops_in_a_finalizer_is_heard_a_moment_later() -> None:
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY / "operator")}
    command = [sys.executable, "-c", LOST_IN_A_FINALIZER]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.split() == ["lost", "heard"]
    assert "Exception ignored" in done.stderr
