"""The half of `spec` that says what is learned: engine, model, tasks, algorithm, episodes.

Part of `v1alpha1_spec`. Attribute docstrings are the API's reference; defaults sit on leaves, so that an omitted
parent still yields them. A field is here only when something executes it.
"""

from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import Field

from tuning_contract.algorithms import ALGORITHMS, ENGINES
from tuning_operator.api.model import (
    DNS_LABEL_PATTERN,
    ApiModel,
    ConfigKey,
    ObjectName,
    Path,
    Rule,
    exactly_one,
    list_map,
    list_set,
    rule,
)

Temperature = Annotated[float, Field(gt=0, le=10, examples=[0.7])]
TopP = Annotated[float, Field(gt=0, le=1, examples=[0.95])]


class Order(StrEnum):
    """Order of training tasks."""

    SHUFFLE = "Shuffle"
    SEQUENTIAL = "Sequential"


class EngineSpec(ApiModel):
    """What trains, and on which Ray."""

    rules: ClassVar[tuple[Rule, ...]] = (
        rule(
            "!has(self.rayVersion) || int(self.rayVersion.split('.')[0]) > 2 || "
            "(int(self.rayVersion.split('.')[0]) == 2 && int(self.rayVersion.split('.')[1]) >= 53)",
            "rayVersion must be at least 2.53.0: earlier ones lack token authentication or the health check in use",
            "rayVersion",
        ),
    )

    type: Annotated[str, Field(json_schema_extra={"enum": list(ENGINES)}, examples=["TRL"])] = "TRL"
    """The training engine: TRL trains on CPU or on one GPU, Trinity on many GPUs. An engine that the installed
    version does not have is told by the condition Accepted, reason NotAvailable."""
    ray_version: Annotated[
        str, Field(min_length=5, max_length=32, pattern=r"^[0-9]{1,4}\.[0-9]{1,4}\.[0-9]{1,4}$", examples=["2.60.0"])
    ] = "2.60.0"
    """Version of Ray in the workflow image, at least 2.53.0."""


class ImageModel(ApiModel):
    """A model in the workflow image."""

    path: Annotated[Path, Field(examples=["/opt/models/SmolLM2-135M-Instruct"])]
    """Absolute path of a Hugging Face folder in the file system of the workflow image."""


class ImageFile(ApiModel):
    """A file of tasks in the workflow image."""

    path: Annotated[Path, Field(examples=["/opt/data/train.jsonl"])]
    """Absolute path of a file of one JSON object a line in the file system of the workflow image."""


class Sampling(ApiModel):
    """How tokens are drawn."""

    temperature: Temperature = 1.0
    """Divisor of the logits; 1 samples from the model's own distribution, which training expects."""
    top_p: TopP = 1.0
    """Share of probability mass that is sampled from; 1 is all of it, which training expects."""


class TemplateKey(ApiModel):
    """A chat template in a ConfigMap."""

    name: Annotated[ObjectName, Field(examples=["math-agent-template"])]
    """Name of the ConfigMap, in the run's namespace."""
    key: Annotated[ConfigKey, Field(examples=["chat.jinja"])] = "chat.jinja"
    """Key in the ConfigMap whose value is the Jinja template."""


class ChatTemplate(ApiModel):
    """A replacement of the model's own chat template."""

    config_map: TemplateKey
    """The ConfigMap that holds the template; it is saved with every checkpoint."""


class ModelSpec(ApiModel):
    """The model to tune."""

    rules: ClassVar[tuple[Rule, ...]] = (
        exactly_one("image"),
        rule(
            "self.maxResponseTokens < self.maxModelLength",
            "maxResponseTokens must be less than maxModelLength: the prompt needs room too",
            "maxResponseTokens",
        ),
    )

    image: ImageModel | None = None
    """The model is a Hugging Face folder in the workflow image."""
    max_model_length: Annotated[int, Field(ge=16, le=4_194_304, examples=[8192])] = 2048
    """Most tokens of prompt and response together."""
    max_response_tokens: Annotated[int, Field(ge=1, le=1_048_576, examples=[1024])] = 256
    """Most tokens of one response of the model."""
    sampling: Sampling = Sampling()
    """How responses are drawn in training."""
    chat_template: ChatTemplate | None = None
    """Chat template to use instead of the model's own."""


class TrainingKey(ApiModel):
    """Training tasks in a ConfigMap."""

    name: Annotated[ObjectName, Field(examples=["math-tasks"])]
    """Name of the ConfigMap, in the run's namespace."""
    key: Annotated[ConfigKey, Field(examples=["train.jsonl"])] = "train.jsonl"
    """Key in the ConfigMap whose value holds one JSON object a line."""


class EvaluationKey(ApiModel):
    """Held-out tasks in a ConfigMap."""

    name: Annotated[ObjectName, Field(examples=["math-tasks"])]
    """Name of the ConfigMap, in the run's namespace."""
    key: Annotated[ConfigKey, Field(examples=["heldout.jsonl"])] = "heldout.jsonl"
    """Key in the ConfigMap whose value holds one JSON object a line."""


class TrainingSet(ApiModel):
    """Where the training tasks come from."""

    rules: ClassVar[tuple[Rule, ...]] = (exactly_one("image", "configMap"),)

    image: ImageFile | None = None
    """The tasks are a file of one JSON object a line in the workflow image."""
    config_map: TrainingKey | None = None
    """The tasks are in a ConfigMap, which holds at most 1 MiB."""


class EvaluationSet(ApiModel):
    """One held-out set, evaluated before the first and after the last step by the same path and seeds."""

    rules: ClassVar[tuple[Rule, ...]] = (
        exactly_one("image", "configMap"),
        rule("self.name != 'train'", "name must not be train: that is the training set's", "name"),
    )

    name: Annotated[str, Field(min_length=1, max_length=63, pattern=DNS_LABEL_PATTERN, examples=["heldout"])]
    """Name of the set, unique in the run; it labels figures and metrics."""
    image: ImageFile | None = None
    """The tasks are a file of one JSON object a line in the workflow image."""
    config_map: EvaluationKey | None = None
    """The tasks are in a ConfigMap, which holds at most 1 MiB."""
    samples_per_task: Annotated[int, Field(ge=1, le=64, examples=[2])] = 1
    """Episodes of each task, averaged."""
    sampling: Sampling = Sampling()
    """How responses are drawn in evaluation."""
    max_tasks: Annotated[int, Field(ge=1, le=1_000_000, examples=[200])] | None = None
    """Evaluate only this many tasks, the first of the file. Without it: all of them."""


class DatasetSpec(ApiModel):
    """The tasks. A task is the raw row, handed to the workflow as a dictionary."""

    train: TrainingSet
    """The tasks to train on."""
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

    rules: ClassVar[tuple[Rule, ...]] = (exactly_one("epochs", "steps"),)

    type: Annotated[str, Field(json_schema_extra={"enum": list(ALGORITHMS)}, examples=["multi_step_grpo"])]
    """Name of the algorithm. multi_step_grpo compares the episodes of one task and trains every turn of each."""
    learning_rate: Annotated[float, Field(gt=0, le=1, examples=[1e-6])]
    """Step size of the optimizer after warm-up."""
    group_size: Annotated[int, Field(ge=2, le=1024, examples=[8])] = 8
    """Episodes of each task in a step."""
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
    """Limits of one episode."""

    turns: Annotated[int, Field(ge=1, le=10_000, examples=[8])] = 32
    """Most model turns of one episode."""
    seconds: Annotated[int, Field(ge=1, le=86_400, examples=[600])] = 300
    """Most seconds of one episode, waiting for the model included."""


class RolloutSpec(ApiModel):
    """How episodes are run, repeated and given up. An infrastructure failure is never a reward."""

    max_attempts: Annotated[int, Field(ge=1, le=10, examples=[3])] = 3
    """Tries of an episode that the infrastructure failed, the first one included."""
    min_group_size: Annotated[int, Field(ge=2, le=1024, examples=[4])] = 2
    """A group with fewer scored episodes is not trained."""
    max_failed_ratio: Annotated[float, Field(ge=0, le=1, examples=[0.1])] = 0.25
    """The run fails when a larger share of a step's episodes was lost to the infrastructure."""
    concurrency: Annotated[int, Field(ge=1, le=4096, examples=[64])] = 32
    """Most episodes at the same time."""
    limits: RolloutLimits = RolloutLimits()
    """Limits of one episode."""
