"""What is checked before the first step, so that a wrong run fails in seconds and with the user's own words.

Engines call these from `check`, with the base model loaded. The entry points are checked by the worker pool when it
loads them, the dataset by `dataset`, the template by the engine's renderer.
"""

import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from tuning_contract.causes import Cause
from tuning_contract.directory import RunDirectory
from tuning_contract.run_document import RunDocument
from tuning_runner.episodes.batch import EpisodeBatch, EpisodeResult
from tuning_runner.episodes.errors import RunError
from tuning_runner.episodes.record import DRY
from tuning_runner.groups import step_failure

DRY_EPISODES = 3
_TELLING_LENGTH = 8
"""Characters: a shorter hidden value may stand in a message by chance."""


def dry_batch(run: RunDocument, rows: Sequence[dict[str, object]]) -> EpisodeBatch:
    """Three episodes of different tasks with the base model."""
    return EpisodeBatch(
        step=0,
        tasks=list(rows[:DRY_EPISODES]),
        group_size=1,
        policy_version=0,
        sampling=run.model.sampling,
        mode=DRY,
    )


def check_dry_episodes(results: Sequence[EpisodeResult], run: RunDocument, say: Callable[[str], None]) -> None:
    """Judge the dry episodes.

    Raises:
        RunError: when none of them was scored: WorkflowError with the user's own exception first, or the cause of the
            failing service.
    """
    records = [result.record for result in results]
    failure = step_failure(records, max_failed_ratio=1.0)
    if failure is not None:
        first = next((record.error.text for record in records if record.error is not None), "")
        counts = ", ".join(f"{number} {name}" for name, number in Counter(r.outcome.value for r in records).items())
        raise RunError(failure.cause, f"{first}\n(no dry episode of the preflight was scored: {counts})".strip())
    if not any(result.turns for result in results):
        raise RunError(Cause.WORKFLOW_ERROR, "no dry episode asked the model for anything: there is nothing to train")
    for name in run.dataset.hidden_fields:
        if any(_shows(result, name) for result in results):
            say(f"warning: the value of the hidden field `{name}` stands in the first message to the model")
    longest = max((turn.prompt_tokens + turn.tokens for record in records for turn in record.turns), default=0)
    say(f"preflight: {len(results)} dry episodes are fine; the longest turn has {longest} tokens")


def _shows(result: EpisodeResult, field: str) -> bool:
    value = str(result.task.get(field, ""))
    if len(value) < _TELLING_LENGTH or not result.turns:
        return False
    return any(value in str(message.get("content")) for message in result.turns[0].messages)


def require_free_space(directory: RunDirectory, needed: int) -> None:
    """RunError StorageFailed when the volume has no room for `needed` bytes of checkpoints and final model.

    What earlier attempts left of both makes room: it is kept in place of new ones or replaced by them.
    """
    free = shutil.disk_usage(directory.root).free
    held = sum(_size(folder) for folder in (directory.checkpoints, directory.final))
    if free + held < needed:
        message = f"the checkpoint volume has {free >> 20} MiB left; checkpoints and final model need"
        raise RunError(Cause.STORAGE_FAILED, f"{message} {(needed - held) >> 20} MiB")


def _size(folder: Path) -> int:
    """Bytes of all files below a folder, 0 when it is not there."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
