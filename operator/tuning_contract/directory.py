"""Where everything of a run lies on the checkpoint volume.

The runner writes these files, the sidecar and the next attempt read them. Two runs on one volume never
share a folder, since the name carries the run's UID.
"""

from dataclasses import dataclass
from pathlib import Path


def relative_path(namespace: str, name: str, uid: str) -> str:
    """Folder of a run below the root of its volume: `<namespace>/<run>-<first 6 hex digits of the UID>`."""
    return f"{namespace}/{name}-{uid.replace('-', '')[:6]}"


@dataclass(frozen=True)
class RunDirectory:
    """The files of one run below `root`."""

    root: Path

    @property
    def current_attempt(self) -> Path:
        """Number of the newest attempt; an older one that reads a newer number stops (fencing)."""
        return self.root / "current-attempt"

    @property
    def checkpoints(self) -> Path:
        """Parent of the checkpoints."""
        return self.root / "checkpoints"

    def checkpoint(self, step: int) -> Path:
        """Folder of the checkpoint after `step` finished steps."""
        return self.checkpoints / f"step-{step:06d}"

    @property
    def final(self) -> Path:
        """The tuned model as a plain Hugging Face folder, with tokenizer and chat template."""
        return self.root / "final"

    @property
    def metrics(self) -> Path:
        """One metric record per line (`tuning_contract.metrics`)."""
        return self.root / "metrics.jsonl"

    @property
    def events(self) -> Path:
        """TensorBoard event files."""
        return self.root / "events"

    def episodes(self, step: int) -> Path:
        """The journal of the episodes of one step, one record per line."""
        return self.root / "episodes" / f"step-{step:06d}.jsonl"

    def logs(self, attempt: int) -> Path:
        """Folder of one attempt's logs."""
        return self.root / "logs" / f"attempt-{attempt}"

    def started(self, attempt: int) -> Path:
        """Created exclusively by the runner: if it exists, the head was replaced inside the attempt."""
        return self.logs(attempt) / "started"

    def stop_request(self, attempt: int) -> Path:
        """Created by whoever wants the attempt to stop: the sidecar, or the hook that runs before its pod goes."""
        return self.logs(attempt) / "stop"

    def stopped(self, attempt: int) -> Path:
        """Created by the runner as its last act, however it ends: nothing more of the attempt will be written."""
        return self.logs(attempt) / "stopped"

    def runner_log(self, attempt: int) -> Path:
        """Everything that the runner printed in this attempt."""
        return self.logs(attempt) / "runner.log"

    @property
    def result(self) -> Path:
        """How the run ended (`tuning_contract.result`)."""
        return self.root / "result.json"

    @property
    def sources(self) -> Path:
        """Commits of the hub's repositories that the first attempt found, which every later one takes."""
        return self.root / "sources.json"

    @property
    def provenance(self) -> Path:
        """Versions, digests and settings that made the final model."""
        return self.root / "provenance.json"

    @property
    def remote_write_mark(self) -> Path:
        """High-water mark of the samples that the sidecar has pushed."""
        return self.root / "remote-write.json"
