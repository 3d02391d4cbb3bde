"""`python -m tuning_runner`: the entry point of the Ray job, a light parent of the training process.

It starts `training`, keeps its log, passes on every wish to stop, and has the last word: whatever the child dies of,
there is a result, and `stopped` says that nothing more is written. Not here: how (`supervision`).
"""

import os
import sys

from tuning_contract import environment
from tuning_contract.termination import EXIT_DRIVER_ERROR
from tuning_runner.location import run_directory, run_document_text
from tuning_runner.supervision import Supervision


def main() -> int:
    """The whole process."""
    attempt = int(os.environ[environment.ATTEMPT])
    text = run_document_text(os.environ)
    return Supervision(text, attempt, run_directory(os.environ, text)).execute()


if __name__ == "__main__":
    try:
        code = main()
    except Exception as error:  # run.json or the volume itself is not usable: there is nowhere to write a result
        print(f"tuning_runner: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        code = EXIT_DRIVER_ERROR
    sys.exit(code)
