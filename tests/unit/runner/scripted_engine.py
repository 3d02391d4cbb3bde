"""An engine that trains nothing, and `python -m tests.unit.runner.scripted_engine`: a training process around it.

The process stops at the call that PAUSES_AT names, and goes on when the file `go` is in the volume's root.
"""

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from tuning_contract.checkpoint import Manifest
from tuning_contract.directory import RunDirectory
from tuning_contract.run_document import RunDocument
from tuning_runner.engine import Context, Held, Inputs, Plan, Resume, Trained, Verdict
from tuning_runner.evaluation import Evaluation
from tuning_runner.training import main

COMMAND = "tests.unit.runner.scripted_engine"


class ScriptedEngine:
    """Trains nothing; writes down what it is asked for. `at` maps a call's name to what happens in it."""

    def __init__(self, calls: list[str], at: Mapping[str, Callable[[], None]]) -> None:
        self._calls = calls
        self._at = at

    def _call(self, name: str) -> None:
        self._calls.append(name)
        self._at.get(name, lambda: None)()

    def plan(self, run: RunDocument, rows: int) -> Plan:
        return Plan(run.algorithm.steps or int((run.algorithm.epochs or 0) * rows // run.algorithm.batch_size))

    def check(self) -> None:
        self._call("check")

    def fingerprint(self) -> Mapping[str, object]:
        return {"seed": 0}

    def evaluate(self, checkpoint: Path | None, held: Held, seconds: float | None = None) -> Evaluation:
        limit = "" if seconds is None else f" in {seconds:.0f} s"
        self._call("evaluate base" if checkpoint is None else f"evaluate {checkpoint.name}{limit}")
        values = {"mean": 0.2 if checkpoint is None else 0.9, "episodes": 20.0, "unscored_ratio": 0.0}
        if "no figure" in self._at:
            del values["mean"]
        return Evaluation(held.settings.name, 0 if checkpoint is None else int(checkpoint.name[5:]), values)

    def train(self, context: Context, resume: Resume | None) -> Trained:
        first = 1 if resume is None else resume.step + 1
        if resume is not None:
            self._calls.append(f"begin with {resume.folder}{' (weights)' if resume.weights_only else ''}")
        for step in range(first, context.target_steps + 1):
            self._call(f"step {step}")
            context.fence.raise_if_superseded()
            context.metrics.step(step, {"reward_mean": step / 10})
            manifest = Manifest("trl", step, step, 0.0, context.fingerprint)
            context.checkpoints.save(manifest, lambda folder: (folder / "weights").write_text("w"))
        checkpoint = context.inputs.directory.checkpoint(context.target_steps)
        return Trained(context.target_steps, checkpoint, {"kl": 0.1} if first <= context.target_steps else {})

    def export(self, checkpoint: Path, final: Path) -> None:
        self._call("export")
        (final / "model.safetensors").write_text("merged")

    def verdict(self, directory: RunDirectory) -> Verdict:
        return Verdict("the final model is half" if "bad verdict" in self._at else "")

    def close(self) -> None:
        self._call("close")


def pausing(inputs: Inputs) -> ScriptedEngine:
    """The engine of the process."""
    root = Path(os.environ["TUNING_VOLUME"])

    def pause() -> None:
        (root / f"paused-{inputs.attempt}").touch()
        while not (root / "go").exists():
            time.sleep(0.02)

    place = os.environ.get("PAUSES_AT", "")
    return ScriptedEngine([], {place: pause} if place else {})


if __name__ == "__main__":
    os._exit(main(pausing))
