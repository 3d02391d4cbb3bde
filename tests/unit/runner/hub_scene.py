"""A hub, the runner's client of it in a process of its own, and what both did; shared by the tests of the hub."""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.hub import Hub
from tests.unit.runner.documents import REPOSITORY, a_run_document, an_algorithm
from tuning_contract.run_document import HubSource, RunDocument

TOKEN = "hf_right"
"""Opens the repositories of the hub that are not open to everyone."""


@dataclass
class Scene:
    """A hub with its client: a cache that all tests share, each with repositories of its own."""

    hub: Hub
    process: subprocess.Popen
    root: Path
    runs: int = 0

    def repository(self, kind: str, name: str, files: dict[str, str | bytes]) -> Path:
        folder = self.hub.root / kind / "org" / name
        for path, content in files.items():
            file = folder / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content if isinstance(content, bytes) else content.encode())
        return folder

    def push(self, folder: Path, files: dict[str, str]) -> None:
        """Change `main`; the commit of before stays, as in a real repository."""
        shutil.copytree(folder, folder.with_name(f"{folder.name}@before"))
        for path, content in files.items():
            (folder / path).write_text(content)

    def a_run(self) -> Path:
        """The folder of a new run."""
        self.runs += 1
        return self.root / "runs" / str(self.runs)

    def load(self, what: str, source: HubSource, directory: Path | None = None, **environment: str) -> dict[str, Any]:
        order = {
            "what": what,
            "run": a_run_of(source).to_text(),
            "directory": str(directory or self.a_run()),
            "environment": {"TOKEN_OF_A_TEST": "", **environment},
        }
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        assert answer, "the client is gone"
        return json.loads(answer)

    def requests_of(self, name: str) -> list[str]:
        return [f"{entry.method} {entry.path}" for entry in self.hub.requests if f"/org/{name}/" in entry.path]

    def downloads_of(self, name: str) -> list[str]:
        return sorted(
            re.sub(".*/resolve/[^/]+/", "", entry.path)
            for entry in self.hub.downloads
            if f"/org/{name}/" in entry.path and entry.status < 300
        )


def a_run_of(source: HubSource) -> RunDocument:
    run = a_run_document(algorithm=an_algorithm(batch_size=1))
    held = replace(run.dataset.evaluation[0], path="", hub=source)
    dataset = replace(run.dataset, path="", hub=source, hidden_fields=(), evaluation=(held,))
    return replace(run, model=replace(run.model, path="", hub=source), dataset=dataset)


@contextlib.contextmanager
def a_client(endpoint: str, root: Path) -> Iterator[subprocess.Popen]:
    """A process of the runner that knows one hub and one cache."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    environment |= {
        "PYTHONPATH": f"{REPOSITORY / 'operator'}:{REPOSITORY}",
        "HF_ENDPOINT": endpoint,
        "HF_HOME": str(root / "cache"),
    }
    with subprocess.Popen(
        [sys.executable, "-m", "tests.unit.runner.hub_client"],
        env=environment,
        cwd=root,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        yield process
        assert process.stdin
        process.stdin.close()


@dataclass(frozen=True)
class Refused:
    """A source that the user must change."""

    message: str
    repo: str = "org/rows"
    revision: str = "main"
    split: str | None = "train"
    subset: str | None = None
    token: str | None = None


def refuse(scene: Scene, what: str, case: Refused, cause: str) -> None:
    variable = "TOKEN_OF_A_TEST" if case.token is not None else None
    source = HubSource(case.repo, case.revision, case.subset, case.split, variable)
    answer = scene.load(what, source, **({"TOKEN_OF_A_TEST": case.token} if case.token is not None else {}))
    assert answer.get("cause") == cause, answer
    assert re.search(case.message, answer["message"]), answer["message"]
    assert "Traceback" not in answer["message"]


def lines(rows: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)
