"""Loads a run's sources in a process of its own, as the runner does: the hub's client reads its variables once.

Started by `hub_scene`; one order per line of standard input, one answer per line of standard output.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from tuning_contract.directory import RunDirectory
from tuning_contract.run_document import RunDocument
from tuning_runner.episodes.errors import RunError
from tuning_runner.sources import Sources
from tuning_runner.training import prepare_environment

LONGEST_PAUSE = 0.02
"""Seconds: the client waits between its own tries for up to 23."""


def answer(order: dict[str, Any]) -> dict[str, Any]:
    os.environ.update(order["environment"])
    said: list[str] = []
    run = RunDocument.from_text(order["run"])
    sources = Sources(run, RunDirectory(Path(order["directory"])), said.append)
    try:
        if order["what"] == "model":
            model = sources.base_model()
            found: dict[str, Any] = {"folder": model.settings.path, "identity": model.identity}
        else:
            evaluation = run.dataset.evaluation[0]
            tasks = sources.training_tasks() if order["what"] == "train" else sources.evaluation_tasks(evaluation)
            found = {"rows": tasks.rows, "digest": tasks.digest, "origin": tasks.path}
        return found | {"said": said, "found": sources.found}
    except RunError as error:
        return {"cause": error.cause, "message": error.message, "said": said}


def main() -> None:
    prepare_environment(hub=True)
    from tuning_runner import hub

    hub._SECONDS_BETWEEN_LINES = 0.2
    pause = time.sleep
    time.sleep = lambda seconds: pause(min(seconds, LONGEST_PAUSE))
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
