"""Where run.json and the run's folder are, by the variables of the process. Standard library only, and quick to import.

Called by the processes' beginnings: `supervision`, `training`, `stop_hook`.
"""

import json
from collections.abc import Mapping
from pathlib import Path

from tuning_contract import environment
from tuning_contract.directory import RunDirectory

VOLUME = "TUNING_VOLUME"
"""Another root of the volume than the mount point; for runs outside a pod."""


def run_document_text(variables: Mapping[str, str]) -> str:
    """run.json as it is; OSError or ValueError when it is not there or no text."""
    return Path(variables.get(environment.RUN_DOCUMENT, environment.RUN_DOCUMENT_PATH)).read_text(encoding="utf-8")


def run_directory(variables: Mapping[str, str], text: str) -> RunDirectory:
    """The run's folder, also by a run.json of another version than this runner's.

    Raises:
        ValueError, KeyError, TypeError: it is no run.json.
    """
    relative = str(json.loads(text)["checkpoint"]["directory"])
    return RunDirectory(Path(variables.get(VOLUME, environment.VOLUME_MOUNT)) / relative)
