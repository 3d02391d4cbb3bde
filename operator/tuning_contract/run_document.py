"""run.json: the resolved run, as the operator hands it to the pods.

The operator renders it once per run from the spec with all defaults applied (`to_text`); runner, driver
and sidecar parse it (`from_text`) into frozen values. JSON keys are the API's camelCase names.
"""

import dataclasses
import functools
import hashlib
import json
import types
import typing
from dataclasses import dataclass, field
from typing import Any

LATER = {"later": True}
"""Of a field that an earlier minor version did not have: it is left out of run.json while it says nothing new.

So an older runner reads a run that it can run, and agrees on its digest; `requires` keeps it from all others.
"""


@dataclass(frozen=True)
class RunIdentity:
    """Whose run it is."""

    namespace: str
    name: str
    uid: str


@dataclass(frozen=True)
class EngineSettings:
    """Which engine trains."""

    type: str
    ray_version: str
    config: str = field(default="{}", metadata=LATER)
    """Engine-native overrides as JSON text; `engine_config` says which keys are reserved."""


@dataclass(frozen=True)
class HubSource:
    """A repository of the Hugging Face hub."""

    repo: str
    revision: str = "main"
    subset: str | None = None
    """Configuration of a dataset; None for a model, and for a dataset that has one only."""
    split: str | None = None
    """Split of a dataset; None for a model."""
    token_variable: str | None = None
    """Name of the environment variable that holds the token; None for a public repository."""


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn."""

    temperature: float = 1.0
    top_p: float = 1.0


@dataclass(frozen=True)
class ModelSettings:
    """The model to tune."""

    path: str
    """Folder of the base model inside the container; empty when it comes from the hub."""
    max_model_length: int
    """Tokens of prompt and response together."""
    max_response_tokens: int
    """Tokens of one response."""
    sampling: Sampling = Sampling()
    chat_template_path: str | None = None
    """File that replaces the model's own template."""
    hub: HubSource | None = field(default=None, metadata=LATER)
    """Where the base model is downloaded from, if `path` is empty."""


@dataclass(frozen=True)
class EvaluationSet:
    """One held-out set."""

    name: str
    path: str
    """File or folder of the tasks inside the container; empty when they come from the hub."""
    samples_per_task: int = 1
    sampling: Sampling = Sampling()
    max_tasks: int | None = None
    hub: HubSource | None = field(default=None, metadata=LATER)
    split: str | None = field(default=None, metadata=LATER)
    """Which files of a folder: those of this split; None leaves the choice to the reader of the folder."""


@dataclass(frozen=True)
class DatasetSettings:
    """The tasks."""

    path: str
    """File or folder of the training tasks inside the container; empty when they come from the hub."""
    order: str = "Shuffle"
    hidden_fields: tuple[str, ...] = ()
    """Fields of a row that only the judge sees."""
    evaluation: tuple[EvaluationSet, ...] = ()
    hub: HubSource | None = field(default=None, metadata=LATER)
    split: str | None = field(default=None, metadata=LATER)
    """Which files of a folder: those of this split; None leaves the choice to the reader of the folder."""


@dataclass(frozen=True)
class LoraSettings:
    """Low-rank adapters."""

    rank: int
    alpha: int


@dataclass(frozen=True)
class AlgorithmSettings:
    """Hyperparameters, all resolved: nothing is left to an engine's default."""

    type: str
    learning_rate: float
    group_size: int
    batch_size: int
    epochs: float | None
    steps: int | None
    save_every_steps: int
    evaluate_every_steps: int
    """0: only before the first and after the last step."""
    kl_coefficient: float
    clip_range: float
    gradient_clip: float
    warmup_steps: int
    micro_batch_tokens: int
    """Tokens of one forward and backward pass."""
    lora: LoraSettings | None = None


@dataclass(frozen=True)
class RolloutLimits:
    """Limits of one episode."""

    turns: int
    seconds: int


@dataclass(frozen=True)
class RolloutSettings:
    """How episodes are run, retried and given up."""

    max_attempts: int
    min_group_size: int
    max_failed_ratio: float
    concurrency: int
    limits: RolloutLimits


@dataclass(frozen=True)
class WorkflowSettings:
    """The user's agent."""

    entrypoint: str
    """module:function"""
    judge: str | None = None


@dataclass(frozen=True)
class ResumeFrom:
    """Where another run's checkpoints lie, from which this one begins."""

    path: str
    """Inside the container: that run's folder, or one checkpoint's in it."""
    mode: str
    """Continue: its training goes on. Weights: a new training begins with its weights."""


@dataclass(frozen=True)
class CheckpointSettings:
    """Where and how often to save."""

    directory: str
    """Folder of the run, relative to the volume's root."""
    claim_name: str
    keep_last: int
    resume_from: ResumeFrom | None = field(default=None, metadata=LATER)
    """What the first attempt begins with; the run's own checkpoints win over it."""


@dataclass(frozen=True)
class ExpectedCluster:
    """What Ray must show before training starts."""

    nodes: int
    """Head and all worker pods."""
    gpus: int
    episode_nodes: int = field(default=0, metadata=LATER)
    """Worker pods on which episodes run, as Ray actors; 0: in processes beside the trainer."""


@dataclass(frozen=True)
class RemoteWrite:
    """Where the sidecar pushes every step."""

    url: str


@dataclass(frozen=True)
class MetricsSettings:
    """How figures leave the run."""

    remote_write: RemoteWrite | None = None


@dataclass(frozen=True)
class RunDocument:
    """The whole resolved run."""

    version: str
    requires: tuple[str, ...]
    run: RunIdentity
    seed: int
    engine: EngineSettings
    model: ModelSettings
    dataset: DatasetSettings
    algorithm: AlgorithmSettings
    rollout: RolloutSettings
    workflow: WorkflowSettings
    checkpoint: CheckpointSettings
    cluster: ExpectedCluster
    metrics: MetricsSettings = field(default_factory=MetricsSettings)

    def to_text(self) -> str:
        """Canonical JSON: sorted keys, indented, so that equal runs have equal text."""
        return json.dumps(_to_json(self), indent=1, sort_keys=True)

    @property
    def digest(self) -> str:
        """SHA-256 of the canonical text, the same for an object that was built and one that was parsed."""
        return hashlib.sha256(RunDocument.from_text(self.to_text()).to_text().encode()).hexdigest()

    @classmethod
    def from_text(cls, text: str) -> "RunDocument":
        """Parse strictly: ValueError names the key that is missing, unknown or of another type."""
        document = _from_json(cls, json.loads(text), "run.json")
        assert isinstance(document, cls)  # noqa: S101 - tells the type checker
        return document


def _camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(word.capitalize() for word in rest)


def _to_json(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        items = [(item, getattr(value, item.name)) for item in dataclasses.fields(value)]
        return {_camel(item.name): _to_json(held) for item, held in items if not _says_nothing_new(item, held)}
    if isinstance(value, tuple):
        return [_to_json(item) for item in value]
    return value


def _says_nothing_new(item: dataclasses.Field[Any], value: Any) -> bool:
    return "later" in item.metadata and bool(value == item.default)


def _from_json(kind: Any, value: Any, where: str) -> Any:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is types.UnionType:
        return None if value is None else _from_json(arguments[0], value, where)
    if origin is tuple:
        if not isinstance(value, list):
            raise ValueError(f"{where} must be a list, not {value!r}")
        return tuple(_from_json(arguments[0], item, f"{where}[{place}]") for place, item in enumerate(value))
    if dataclasses.is_dataclass(kind):
        return _object_from_json(kind, value, where)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise ValueError(f"{where} must be {kind.__name__}, not {value!r}")
    return value


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    """Resolving annotations takes far longer than reading a document."""
    return typing.get_type_hints(kind)


def _object_from_json(kind: Any, value: Any, where: str) -> Any:
    if not isinstance(value, dict):
        raise ValueError(f"{where} must be an object, not {value!r}")
    hints = _hints(kind)
    items = {_camel(item.name): item for item in dataclasses.fields(kind)}
    if unknown := sorted(set(value) - set(items)):
        raise ValueError(f"{where} has unknown keys: {', '.join(unknown)}")
    arguments = {}
    for key, item in items.items():
        if key in value:
            arguments[item.name] = _from_json(hints[item.name], value[key], f"{where}.{key}")
        elif item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING:
            raise ValueError(f"{where}.{key} is missing")
    return kind(**arguments)
