"""Loads what a run works on: tasks and base model, from files or from the Hugging Face hub.

Called by `attempt` before an engine is made. Not here: the formats of task files (`dataset`), the hub's client (`hub`,
`hub_dataset`), loading weights (the engines).
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tuning_contract.directory import RunDirectory
from tuning_contract.run_document import EvaluationSet, HubSource, ModelSettings, RunDocument
from tuning_runner.dataset import Dataset, dataset_of, load_dataset
from tuning_runner.dataset_files import EVALUATION_SPLITS
from tuning_runner.dataset_formats import DatasetError

if TYPE_CHECKING:
    from tuning_runner.hub import Commits, Found, Place


@dataclass(frozen=True)
class BaseModel:
    """The model to tune, on this machine."""

    settings: ModelSettings
    """The run's, with the folder's path whatever the source is."""
    identity: str
    """Names it for good, for the resume fingerprint: the path, or repository and commit."""


def uses_hub(run: RunDocument) -> bool:
    """Whether model or tasks come from the hub."""
    sources = [run.model.hub, run.dataset.hub, *(entry.hub for entry in run.dataset.evaluation)]
    return any(source is not None for source in sources)


class Sources:
    """Everything that one run reads.

    Args:
        run: the resolved run.
        directory: of the run; keeps the commits that its first attempt found.
        say: gets lines of progress.
    """

    def __init__(self, run: RunDocument, directory: RunDirectory, say: Callable[[str], None]) -> None:
        self._run = run
        self._directory = directory
        self._say = say
        self._commits: Commits | None = None
        self._found: dict[str, Found] = {}

    @property
    def found(self) -> dict[str, dict[str, str]]:
        """Repository, revision and commit of each source on the hub that was loaded: provenance."""
        return {name: asdict(found) for name, found in self._found.items()}

    def training_tasks(self) -> Dataset:
        """The rows to train on, at least one batch of them.

        Raises:
            RunError: DatasetInvalid, or why the hub gave nothing.
        """
        settings = self._run.dataset
        if settings.hub is not None:
            train = self._hub_dataset(settings.hub, "train", "dataset.train")
        else:
            train = load_dataset(Path(settings.path), settings.hidden_fields, settings.split)
        batch = self._run.algorithm.batch_size
        if len(train.rows) < batch:
            message = f"dataset {train.path} has {len(train.rows)} rows, fewer than `algorithm.batchSize` {batch}"
            raise DatasetError(message)
        return train

    def evaluation_tasks(self, entry: EvaluationSet) -> Dataset:
        """The rows of one held-out set; raises as `training_tasks` does.

        A set in which no row has a hidden field is refused, too: it has the solution under another name.
        """
        title = f"evaluation set {entry.name}"
        if entry.hub is not None:
            return self._hub_dataset(entry.hub, f"evaluation/{entry.name}", f"dataset.evaluation[{entry.name}]", title)
        return load_dataset(Path(entry.path), self._run.dataset.hidden_fields, entry.split, EVALUATION_SPLITS, title)

    def base_model(self) -> BaseModel:
        """The model's folder; downloads what the cache lacks.

        Raises:
            RunError: ConfigInvalid, or why the hub gave nothing.
        """
        settings = self._run.model
        if settings.hub is None:
            return BaseModel(settings, settings.path)
        from tuning_runner.hub import MODEL, fetch_model

        found = self._find(settings.hub, MODEL)
        folder = fetch_model(settings.hub, found, self._say)
        return BaseModel(replace(settings, path=str(folder)), found.identity)

    def _hub_dataset(self, source: HubSource, name: str, field: str, title: str = "") -> Dataset:
        from tuning_runner.hub import Place
        from tuning_runner.hub_dataset import hub_origin, hub_rows

        place = Place(name, f"{field}.huggingFace", "dataset")
        found = self._find(source, place)
        self._say(f"dataset {hub_origin(source)} of the hub at {found.commit[:12]}")
        return dataset_of(hub_rows(source, found, place), hub_origin(source), self._run.dataset.hidden_fields, title)

    def _find(self, source: HubSource, place: "Place") -> "Found":
        from tuning_runner.hub import Commits

        if self._commits is None:
            self._commits = Commits(self._directory.sources)
        found = self._found[place.name] = self._commits.find(source, place)
        return found
