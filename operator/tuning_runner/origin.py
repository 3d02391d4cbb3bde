"""`checkpoint.resumeFrom`: the checkpoint of another run with which this one begins, when it has none of its own.

Called by `attempt`. That run's files are only read: a damaged checkpoint there is passed over, not deleted. Not here:
the run's own checkpoints (`checkpoints`), loading (the engines).
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tuning_contract.causes import Cause
from tuning_contract.checkpoint import MANIFEST, Manifest, complete_checkpoints, damage
from tuning_contract.directory import RunDirectory
from tuning_contract.fingerprint import differing_fields
from tuning_contract.run_document import ResumeFrom
from tuning_runner.checkpoints import differences
from tuning_runner.engine import Resume
from tuning_runner.episodes.errors import RunError

CONTINUE = "Continue"
_FIELD = "`checkpoint.resumeFrom`"


def find_origin(wanted: ResumeFrom, say: Callable[[str], None]) -> Resume:
    """The newest whole checkpoint at the path; quick to fail, before anything is loaded.

    Raises:
        RunError: ConfigInvalid, naming the path, when there is none.
    """
    path = Path(wanted.path)
    for folder, manifest in reversed(_complete(path)):
        if found := damage(folder, manifest):
            say(f"warning: checkpoint {folder} is damaged: {found}; passed over")
            continue
        return Resume(folder, manifest, weights_only=wanted.mode != CONTINUE)
    raise RunError(Cause.CONFIG_INVALID, f"{_FIELD}: {_nothing(path)}")


def require_continuation(origin: Resume, fingerprint: Mapping[str, Any], target_steps: int) -> None:
    """RunError ConfigInvalid when the training of `origin` cannot go on in this run."""
    if origin.weights_only:
        return
    if fields := differing_fields(fingerprint, origin.manifest.fingerprint):
        listed = differences(fields, fingerprint, origin.manifest.fingerprint)
        message = (
            f"{_FIELD}: checkpoint {origin.folder} was made with other settings: {listed}: set them as they were, "
            "or begin a new training with its weights (mode: Weights)"
        )
        raise RunError(Cause.CONFIG_INVALID, message)
    if origin.step >= target_steps:
        message = (
            f"{_FIELD}: checkpoint {origin.folder} has {origin.step} steps, and this run ends after {target_steps}: "
            "its steps count from the first of the other run, so set more `algorithm.steps` or `algorithm.epochs`"
        )
        raise RunError(Cause.CONFIG_INVALID, message)


def _complete(path: Path) -> tuple[tuple[Path, Manifest], ...]:
    """The complete checkpoints of a run's folder, or the one that the path itself is."""
    try:
        return ((path, Manifest.from_text((path / MANIFEST).read_text(encoding="utf-8"))),)
    except (OSError, ValueError):
        return complete_checkpoints(RunDirectory(path).checkpoints)


def _nothing(path: Path) -> str:
    if not path.is_dir():
        found = _names(path.parent)
        return f"there is no folder {path}; its parent has {found}"
    if path.name.startswith("step-"):
        return f"{path} is no complete checkpoint: take another one beside it ({_names(path.parent)})"
    return f"{path} has no complete checkpoint: name a run's folder or one checkpoint's; it has {_names(path)}"


def _names(folder: Path) -> str:
    try:
        return ", ".join(sorted(entry.name for entry in folder.iterdir())[:10]) or "nothing in it"
    except OSError as error:
        return f"nothing that can be listed ({error.strerror})"
