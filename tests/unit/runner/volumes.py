"""A run's volume in a folder, and `python -m tuning_runner` on it as the Ray job starts it."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.unit.runner.documents import DIRECTORY, REPOSITORY, TINY
from tuning_contract.directory import RunDirectory
from tuning_contract.metrics import MetricRecord
from tuning_contract.result import RunResult
from tuning_contract.run_document import RunDocument


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

    def start(self, run: RunDocument, attempt: int, source: Path = TINY) -> subprocess.Popen:
        document = self.root / "run.json"
        document.write_text(run.to_text())
        environment = os.environ | {
            "PYTHONPATH": f"{REPOSITORY / 'operator'}:{source}",
            "TUNING_VOLUME": str(self.root),
            "TUNING_RUN_DOCUMENT": str(document),
            "TUNING_ATTEMPT": str(attempt),
        }
        environment.pop("RAY_ADDRESS", None)
        return subprocess.Popen(
            [sys.executable, "-m", "tuning_runner"], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )

    def execute(self, run: RunDocument, attempt: int = 1, source: Path = TINY) -> tuple[int, str]:
        process = self.start(run, attempt, source)
        output, _ = process.communicate(timeout=300)
        return process.returncode, output.decode()
