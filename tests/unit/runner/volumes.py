"""A run's volume in a folder, and `python -m tuning_runner` on it as the Ray job starts it."""

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.unit.runner.documents import DIRECTORY, REPOSITORY, TINY
from tuning_contract.directory import RunDirectory
from tuning_contract.metrics import MetricRecord
from tuning_contract.result import RunResult
from tuning_contract.run_document import RunDocument

Process = subprocess.Popen[bytes]


@dataclass(frozen=True)
class Volume:
    """A run's volume, and the process that the Ray job would be."""

    root: Path

    @property
    def run(self) -> RunDirectory:
        return RunDirectory(self.root / DIRECTORY)

    @property
    def result(self) -> RunResult:
        return RunResult.from_text(self.run.result.read_text())

    def log(self, attempt: int) -> str:
        return self.run.runner_log(attempt).read_text()

    def records(self, role: str) -> list[MetricRecord]:
        lines = [MetricRecord.from_line(line) for line in self.run.metrics.read_text().splitlines()]
        return [record for record in lines if record.role == role]

    def environment(self, run: RunDocument, attempt: int, source: Path = TINY) -> dict[str, str]:
        """The variables of the run's processes; run.json is written."""
        document = self.root / "run.json"
        document.write_text(run.to_text())
        environment = os.environ | {
            "PYTHONPATH": f"{REPOSITORY / 'operator'}:{source}",
            "TUNING_VOLUME": str(self.root),
            "TUNING_RUN_DOCUMENT": str(document),
            "TUNING_ATTEMPT": str(attempt),
        }
        environment.pop("RAY_ADDRESS", None)
        return environment

    def start(
        self, run: RunDocument, attempt: int, source: Path = TINY, prefix: Sequence[str] = ()
    ) -> subprocess.Popen:
        """The Ray job's process, in a group of its own."""
        return subprocess.Popen(
            [*prefix, sys.executable, "-m", "tuning_runner"],
            env=self.environment(run, attempt, source),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def execute(self, run: RunDocument, attempt: int = 1, source: Path = TINY) -> tuple[int, str]:
        process = self.start(run, attempt, source)
        output, _ = process.communicate(timeout=300)
        return process.returncode, output.decode()
