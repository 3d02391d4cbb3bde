"""The half of `spec` that says what is learned: engine, model, tasks, algorithm, episodes.

Part of `v1alpha1_spec`. Attribute docstrings are the API's reference; defaults sit on leaves, so that an omitted
parent still yields them. A field is here only when something executes it.
"""

from enum import StrEnum
from typing import Annotated, Any, ClassVar

from pydantic import Field, WithJsonSchema

from tuning_contract.algorithms import ENGINES, KNOWN_ALGORITHMS
from tuning_contract.engine_config import RESERVED
from tuning_operator.api.model import (
    ApiModel,
    DnsLabel,
    Rule,
    exactly_one,
    in_words,
    list_map,
    list_set,
    rule,
)
from tuning_operator.api.v1alpha1_sources import (
    ChatTemplate,
    ClaimFile,
    ClaimModel,
    EvaluationKey,
    HubDataset,
    HubModel,
    ImageFile,
    ImageModel,
    RunModel,
    TrainingKey,
)

MODEL_SOURCES = ("huggingFace", "volume", "image", "run")
DATASET_SOURCES = ("huggingFace", "volume", "configMap", "image")
GROUP_METHODS = tuple(row.name for row in KNOWN_ALGORITHMS.values() if row.group_relative)
"""Algorithms that compare the episodes of one task."""

RAY_VERSION_PATTERN = r"^[0-9]{1,4}\.[0-9]{1,4}\.[0-9]{1,4}$"

_TEXT = {"type": "string"}
_FLAG = {"type": "boolean"}
_STUBS: dict[str, dict[str, Any]] = {
    "auto_find_batch_size": _FLAG,
    "chat_template_path": _TEXT,
    "dataset_name": _TEXT,
    "eval_strategy": _TEXT,
    "importance_sampling_level": _TEXT,
    "loss_type": _TEXT,
    "model_init_kwargs": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
    "model_name_or_path": _TEXT,
    "output_dir": _TEXT,
    "report_to": {"type": "array", "maxItems": 64, "items": _TEXT},
    "reward_weights": {"type": "array", "maxItems": 64, "items": {"type": "number"}},
    "save_strategy": _TEXT,
    "scale_rewards": _FLAG,
    "shuffle_dataset": _FLAG,
    "use_cpu": _FLAG,
    "use_peft": _FLAG,
    "use_vllm": _FLAG,
}
"""Schemas of reserved keys that are no numbers, as they are mostly written: a value of another type is refused for its
type, before the rule that names the field to use is asked."""

Temperature = Annotated[float, Field(gt=0, le=10, examples=[0.7])]
TopP = Annotated[float, Field(gt=0, le=1, examples=[0.95])]


def _engine_config_schema() -> dict[str, Any]:
    """Any object, but for the keys that the API owns: each is a stub, so that a rule can refuse it by name."""
    return {
        "type": "object",
        "x-kubernetes-preserve-unknown-fields": True,
        "maxProperties": 64,
        "properties": {
            key: _STUBS.get(key, {"type": "number"}) | {"description": f"Reserved: set spec.{owner} instead."}
            for key, owner in RESERVED.items()
        },
        "x-kubernetes-validations": [
            rule(f"!has(self.{key})", f"`{key}` is reserved: set `spec.{owner}` instead", key)
            for key, owner in RESERVED.items()
        ],
    }


EngineConfig = Annotated[dict[str, Any], WithJsonSchema(_engine_config_schema())]


class Order(StrEnum):
    """Order of training tasks."""

    SHUFFLE = "Shuffle"
    SEQUENTIAL = "Sequential"


class EngineSpec(ApiModel):
    """What trains, and on which Ray."""

    validations: ClassVar[tuple[Rule, ...]] = (
        rule(
            f"!has(self.rayVersion) || !self.rayVersion.matches(r'{RAY_VERSION_PATTERN}') || "
            "int(self.rayVersion.split('.')[0]) > 2 || "
            "(int(self.rayVersion.split('.')[0]) == 2 && int(self.rayVersion.split('.')[1]) >= 53)",
            "`rayVersion` must be at least 2.53.0: earlier ones lack token authentication or the health check in use",
            "rayVersion",
        ),
    )

    type: Annotated[str, Field(json_schema_extra={"enum": list(ENGINES)}, examples=["TRL"])] = "TRL"
    """The training engine: TRL trains on CPU or on one GPU, Trinity on many GPUs. An engine that the installed
    version does not have is told by the condition Accepted, reason NotAvailable."""
    ray_version: Annotated[
        str,
        Field(
            min_length=5,
            max_length=32,
            pattern=RAY_VERSION_PATTERN,
            json_schema_extra=in_words("must be a version of Ray in three numbers, such as 2.60.0"),
            examples=["2.60.0"],
        ),
    ] = "2.60.0"
    """Version of Ray in the workflow image, at least 2.53.0."""
    config: EngineConfig = Field(default_factory=dict)
    """Free-form overrides in the engine's own words, such as weight_decay; docs/how-to/choose-an-algorithm.md lists
    those of TRL. A key that a field of the API owns is refused."""


class Sampling(ApiModel):
    """How tokens are drawn."""

    temperature: Temperature = 1.0
    """Divisor of the logits; 1 samples from the model's own distribution, which training expects."""
    top_p: TopP = 1.0
    """Share of probability mass that is sampled from; 1 is all of it, which training expects."""


class ModelSpec(ApiModel):
    """The model to tune."""

    validations: ClassVar[tuple[Rule, ...]] = (
        exactly_one(*MODEL_SOURCES),
        rule(
            "self.maxResponseTokens < self.maxModelLength",
            "`maxResponseTokens` must be less than `maxModelLength`: the prompt needs room too",
            "maxResponseTokens",
        ),
    )

    hugging_face: HubModel | None = None
    """The model is downloaded from the Hugging Face hub."""
    volume: ClaimModel | None = None
    """The model is a Hugging Face folder on a claim."""
    image: ImageModel | None = None
    """The model is a Hugging Face folder in the workflow image."""
    run: RunModel | None = None
    """The model is the final one of another run in the same namespace."""
    max_model_length: Annotated[int, Field(ge=16, le=4_194_304, examples=[8192])] = 2048
    """Most tokens of prompt and response together."""
    max_response_tokens: Annotated[int, Field(ge=1, le=1_048_576, examples=[1024])] = 256
    """Most tokens of one response of the model."""
    sampling: Sampling = Sampling()
    """How responses are drawn in training."""
    chat_template: ChatTemplate | None = None
    """Chat template to use instead of the model's own."""


class TrainingSet(ApiModel):
    """Where the training tasks come from."""

    validations: ClassVar[tuple[Rule, ...]] = (exactly_one(*DATASET_SOURCES),)

    hugging_face: HubDataset | None = None
    """The tasks are a dataset of the Hugging Face hub."""
    volume: ClaimFile | None = None
    """The tasks are a file or folder on a claim."""
    config_map: TrainingKey | None = None
    """The tasks are in a ConfigMap, which holds at most 1 MiB."""
    image: ImageFile | None = None
    """The tasks are a file or folder in the workflow image."""


class EvaluationSet(ApiModel):
    """One held-out set, evaluated before the first and after the last step by the same path and seeds."""

    validations: ClassVar[tuple[Rule, ...]] = (
        exactly_one(*DATASET_SOURCES),
        rule("self.name != 'train'", "`name` must not be train, which is the training set's: choose another", "name"),
    )

    name: Annotated[DnsLabel, Field(examples=["heldout"])]
    """Name of the set, unique in the run; it labels figures and metrics."""
    hugging_face: HubDataset | None = None
    """The tasks are a dataset of the Hugging Face hub."""
    volume: ClaimFile | None = None
    """The tasks are a file or folder on a claim."""
    config_map: EvaluationKey | None = None
    """The tasks are in a ConfigMap, which holds at most 1 MiB."""
    image: ImageFile | None = None
    """The tasks are a file or folder in the workflow image."""
    samples_per_task: Annotated[int, Field(ge=1, le=64, examples=[2])] = 1
    """Episodes of each task, averaged."""
    sampling: Sampling = Sampling()
    """How responses are drawn in evaluation."""
    max_tasks: Annotated[int, Field(ge=1, le=1_000_000, examples=[200])] | None = None
    """Evaluate only this many tasks, the first of the file. Without it: all of them."""


class DatasetSpec(ApiModel):
    """The tasks. A task is the raw row, handed to the workflow as a dictionary."""

    train: TrainingSet
    """Where the tasks to train on come from."""
    order: Annotated[Order, Field(examples=["Sequential"])] = Order.SHUFFLE
    """Shuffle draws a new order for each epoch from the seed, Sequential keeps the file's."""
    hidden_fields: Annotated[
        tuple[Annotated[str, Field(min_length=1, max_length=253)], ...],
        Field(max_length=32, json_schema_extra=list_set, examples=[["answer"]]),
    ] = ()
    """Fields of a row that the judge sees and the workflow does not."""
    evaluation: Annotated[tuple[EvaluationSet, ...], Field(max_length=8, json_schema_extra=list_map("name"))] = ()
    """Held-out sets; without any, the run ends without a verdict on what it learned."""


class LoraSpec(ApiModel):
    """Low-rank adapters instead of all weights."""

    rank: Annotated[int, Field(ge=1, le=1024, examples=[16])] = 16
    """Rank of the adapters."""
    alpha: Annotated[int, Field(ge=1, le=4096, examples=[32])] | None = None
    """Scale of the adapters, divided by the rank. Without it: twice the rank."""


class AlgorithmSpec(ApiModel):
    """How the model learns. A step is one batch of tasks, on every engine."""

    validations: ClassVar[tuple[Rule, ...]] = (
        exactly_one("epochs", "steps"),
        rule(
            f"!(self.type in {list(GROUP_METHODS)!r}) || !has(self.groupSize) || self.groupSize >= 2",
            f"`groupSize` must be at least 2 with {', '.join(GROUP_METHODS)}, which compare the episodes of one task",
            "groupSize",
        ),
    )

    type: Annotated[str, Field(json_schema_extra={"enum": list(KNOWN_ALGORITHMS)}, examples=["multi_step_grpo"])]
    """Name of the algorithm; docs/how-to/choose-an-algorithm.md compares them. One that the installed version does
    not have is told by the condition Accepted, reason NotAvailable."""
    learning_rate: Annotated[float, Field(gt=0, le=1, examples=[1e-6])]
    """Step size of the optimizer after warm-up."""
    group_size: Annotated[int, Field(ge=1, le=1024, examples=[8])] = 8
    """Episodes of each task in a step; at least 2 for the algorithms that compare the episodes of one task."""
    batch_size: Annotated[int, Field(ge=1, le=65_536, examples=[32])] = 8
    """Tasks in a step; a step has batchSize x groupSize episodes."""
    epochs: Annotated[float, Field(gt=0, le=100_000, examples=[1])] | None = None
    """Passes over the training tasks; the run has floor(epochs x tasks / batchSize) steps."""
    steps: Annotated[int, Field(ge=1, le=1_000_000, examples=[500])] | None = None
    """Steps of the whole run."""
    save_every_steps: Annotated[int, Field(ge=1, le=1_000_000, examples=[20])] = 20
    """Steps between checkpoints; the last step is always saved."""
    evaluate_every_steps: Annotated[int, Field(ge=1, le=1_000_000, examples=[20])] | None = None
    """Steps between evaluations. Without it: only before the first and after the last step."""
    lora: LoraSpec | None = None
    """Train low-rank adapters. Without it: all weights."""
    kl_coefficient: Annotated[float, Field(ge=0, le=100, examples=[0.001])] | None = None
    """Weight of the divergence from the base model in the loss. Without it: the algorithm's own, 0 for GRPO."""
    clip_range: Annotated[float, Field(gt=0, lt=1, examples=[0.2])] | None = None
    """The probability ratio is clipped to 1 - clipRange .. 1 + clipRange. Without it: the algorithm's own."""
    gradient_clip: Annotated[float, Field(gt=0, le=1000, examples=[1.0])] | None = None
    """Largest norm of the gradient; larger ones are scaled down. Without it: the algorithm's own."""
    warmup_steps: Annotated[int, Field(ge=0, le=1_000_000, examples=[10])] | None = None
    """Optimizer steps in which the learning rate rises from 0. Without it: the algorithm's own."""
    micro_batch_tokens: Annotated[int, Field(ge=16, le=16_777_216, examples=[8192])] = 4096
    """Tokens of one forward and backward pass: decides memory, not the result."""


class RolloutLimits(ApiModel):
    """Limits of one episode, after which it ends."""

    turns: Annotated[int, Field(ge=1, le=10_000, examples=[8])] = 32
    """Most model turns of one episode."""
    seconds: Annotated[int, Field(ge=1, le=86_400, examples=[600])] = 300
    """Most seconds of one episode, waiting for the model included."""


class RolloutSpec(ApiModel):
    """How episodes are run, repeated and given up. An infrastructure failure is never a reward."""

    max_attempts: Annotated[int, Field(ge=1, le=10, examples=[3])] = 3
    """Tries of an episode that the infrastructure failed, the first one included."""
    min_group_size: Annotated[int, Field(ge=1, le=1024, examples=[4])] = 2
    """A group with fewer scored episodes is not trained; at least 2 for the algorithms that compare the episodes of
    one task."""
    max_failed_ratio: Annotated[float, Field(ge=0, le=1, examples=[0.1])] = 0.25
    """The run fails when a larger share of a step's episodes was lost to the infrastructure."""
    concurrency: Annotated[int, Field(ge=1, le=4096, examples=[64])] = 32
    """Most episodes at the same time."""
    limits: RolloutLimits = RolloutLimits()
    """Limits of one episode, after which it ends."""
