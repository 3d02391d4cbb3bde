"""The half of `spec` that says what runs and what is kept: workflow, checkpoints, metrics.

Part of `v1alpha1_spec`; the same rules hold as in `v1alpha1_training`. The pods are in `v1alpha1_cluster`.
"""

from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import Field

from tuning_operator.api.model import (
    VARIABLE_PATTERN,
    VARIABLE_WORDS,
    ApiModel,
    Entrypoint,
    ObjectName,
    Quantity,
    RelativePath,
    Rule,
    exactly_one,
    in_words,
    list_map,
    list_set,
    rule,
)
from tuning_operator.api.v1alpha1_sources import VariableSource, VariablesSource, WorkflowSource

RESERVED_VARIABLES = (
    "FQ_RAY_IP",
    "HF_HOME",
    "PYTHONPATH",
    "RAY_ADDRESS",
    "RAY_AUTH_MODE",
    "RAY_AUTH_TOKEN",
    "RAY_CLUSTER_NAME",
    "RAY_PORT",
    "RAY_REDIS_ADDRESS",
    "RAY_USAGE_STATS_ENABLED",
    "RAY_enable_autoscaler_v2",
    "REDIS_USERNAME",
)
"""Variables that the operator or KubeRay sets in the Ray containers, and those for which KubeRay refuses a head by an
Event alone, so that the run would wait for ever."""

IMAGE_PATTERN = r"^\S+$"
URL_PATTERN = r"^https?://\S+$"


class DeletionPolicy(StrEnum):
    """What becomes of a claim that was made for the run."""

    RETAIN = "Retain"
    DELETE = "Delete"


class AccessMode(StrEnum):
    """How a claim may be mounted, and by how many nodes or pods."""

    READ_WRITE_ONCE = "ReadWriteOnce"
    READ_WRITE_MANY = "ReadWriteMany"
    READ_WRITE_ONCE_POD = "ReadWriteOncePod"


class EnvironmentVariable(ApiModel):
    """One variable of the Ray containers."""

    validations: ClassVar[tuple[Rule, ...]] = (
        exactly_one("value", "valueFrom"),
        rule(
            f"!self.name.startsWith('TUNING_') && !(self.name in {list(RESERVED_VARIABLES)!r})",
            "`name` must not be a variable that the operator or KubeRay sets, which are TUNING_* and "
            f"{', '.join(RESERVED_VARIABLES)}: choose another",
            "name",
        ),
    )

    name: Annotated[
        str,
        Field(
            min_length=1,
            max_length=253,
            pattern=VARIABLE_PATTERN,
            json_schema_extra=in_words(VARIABLE_WORDS),
            examples=["TOOL_SERVER"],
        ),
    ]
    """Name of the variable."""
    value: Annotated[str, Field(max_length=4096, examples=["http://tools.ml:8000"])] | None = None
    """Value of the variable, taken literally; it is no place for secrets."""
    value_from: VariableSource | None = None
    """Where the value comes from: a key of a Secret or of a ConfigMap."""


class WorkflowSpec(ApiModel):
    """The user's agent and its judge."""

    validations: ClassVar[tuple[Rule, ...]] = (
        rule("has(self.entrypoint)", "set `entrypoint`: the agent as module:function", "entrypoint"),
    )

    image: (
        Annotated[
            str,
            Field(
                min_length=1,
                max_length=512,
                pattern=IMAGE_PATTERN,
                json_schema_extra=in_words("must be the name of an image, such as team/math-agent:1.3, without blanks"),
                examples=["registry.example.com/team/math-agent:1.3"],
            ),
        ]
        | None
    ) = None
    """Image of the Ray containers, built on the engine's. Without it: the engine's image of the installation."""
    entrypoint: Annotated[Entrypoint, Field(examples=["math_agent:run"])] | None = None
    """The agent as module:function, with the signature async (task, model[, auxiliary_models][, logger]) ->
    WorkflowOutput. Required today; other kinds of agents will stand beside it."""
    judge: Annotated[Entrypoint, Field(examples=["math_agent:judge"])] | None = None
    """The judge as module:function, async (task, response) -> JudgeOutput. Without it: the workflow returns the
    reward."""
    source: WorkflowSource | None = None
    """Code to try without building an image."""
    env: Annotated[tuple[EnvironmentVariable, ...], Field(max_length=64, json_schema_extra=list_map("name"))] = ()
    """Variables of the Ray containers."""
    env_from: Annotated[tuple[VariablesSource, ...], Field(max_length=16)] = ()
    """Secrets and ConfigMaps whose keys become variables of the Ray containers; `env` wins over them."""


class ClaimTemplate(ApiModel):
    """A claim to be made for the run."""

    validations: ClassVar[tuple[Rule, ...]] = (
        rule(
            "!isQuantity(string(self.size)) || quantity(string(self.size)).compareTo(quantity('1Mi')) >= 0",
            "`size` must be at least 1Mi: it holds the checkpoints and the final model",
            "size",
        ),
        rule(
            "!('ReadWriteOncePod' in self.accessModes) || self.accessModes.size() == 1",
            "`accessModes` must not have others beside ReadWriteOncePod: choose one",
            "accessModes",
        ),
    )

    storage_class_name: Annotated[ObjectName, Field(examples=["fast"])] | None = None
    """Storage class of the claim. Without it: the installation's choice, or else the cluster's default class."""
    size: Annotated[Quantity, Field(examples=["200Gi"])] = "20Gi"
    """Size of the claim, as a Kubernetes quantity."""
    access_modes: Annotated[
        tuple[AccessMode, ...],
        Field(min_length=1, max_length=3, json_schema_extra=list_set, examples=[["ReadWriteMany"]]),
    ] = (AccessMode.READ_WRITE_MANY,)
    """How the claim may be mounted; several pods on several nodes need ReadWriteMany."""


class CheckpointVolume(ApiModel):
    """Where checkpoints, logs and the final model are kept."""

    validations: ClassVar[tuple[Rule, ...]] = (exactly_one("claimTemplate", "claimName"),)

    claim_template: ClaimTemplate | None = None
    """Make a claim for this run, named like its other children."""
    claim_name: Annotated[ObjectName, Field(examples=["tuning-results"])] | None = None
    """Use this PersistentVolumeClaim, which may be shared: each run has a folder of its own. It is never deleted."""


class ResumeMode(StrEnum):
    """What is taken from another run's checkpoint."""

    CONTINUE = "Continue"
    """Weights, optimizer, and the place in the tasks: its training goes on."""
    WEIGHTS = "Weights"
    """The weights alone: a new training begins with them."""


class ResumeFrom(ApiModel):
    """Checkpoints of another run, with which this one begins."""

    claim_name: Annotated[ObjectName, Field(examples=["tuning-results"])]
    """PersistentVolumeClaim that holds them, in the run's namespace; it is only read."""
    path: Annotated[RelativePath, Field(examples=["ml/math-agent-3f9a1c"])]
    """The other run's folder on the claim, of which the newest complete checkpoint is taken, or one checkpoint's folder
    in it, as `status.checkpoint.path` shows it."""
    mode: Annotated[ResumeMode, Field(examples=["Weights"])] = ResumeMode.CONTINUE
    """Continue: go on with its steps, which needs the same model, tasks and algorithm. Weights: begin at step 0 with
    its weights."""


class CheckpointSpec(ApiModel):
    """What is kept, and where."""

    validations: ClassVar[tuple[Rule, ...]] = (
        rule(
            "!has(self.deletionPolicy) || self.deletionPolicy != 'Delete' || !has(self.volume.claimName)",
            "`deletionPolicy` Delete needs a claim that is made for the run: use `volume.claimTemplate`, or leave "
            "`deletionPolicy` out and delete the run's folder on the claim yourself",
            "deletionPolicy",
        ),
    )

    volume: CheckpointVolume
    """The claim that keeps what the run makes."""
    keep_last: Annotated[int, Field(ge=1, le=1000, examples=[5])] = 3
    """Checkpoints to keep; older ones are deleted."""
    resume_from: ResumeFrom | None = None
    """Begin with another run's checkpoint. Attempts that are made later go on from the run's own."""
    deletion_policy: Annotated[DeletionPolicy, Field(examples=["Delete"])] | None = None
    """Whether a claim that was made for the run is deleted with the run; Retain leaves it. Without it: the choice of
    the installation, Retain if that has none."""


class RemoteWrite(ApiModel):
    """A Prometheus that accepts pushes."""

    validations: ClassVar[tuple[Rule, ...]] = (
        rule(
            "!self.url.matches('^https?://[^/?#]*@')",
            "`url` must not hold a user or a password, which everyone who reads the run would see: use a receiver "
            "that needs none, or a proxy in the cluster that adds them",
            "url",
        ),
    )

    url: Annotated[
        str,
        Field(
            min_length=8,
            max_length=2048,
            pattern=URL_PATTERN,
            json_schema_extra=in_words("must be an address that begins with http:// or https://, without blanks"),
            examples=["http://prometheus.monitoring.svc:9090/api/v1/write"],
        ),
    ]
    """Address of the receiver, remote-write 1.0."""


class MetricsSpec(ApiModel):
    """How figures leave the run, beside the scrape of its pod."""

    remote_write: RemoteWrite | None = None
    """Push every step at its own time, so that no step is lost between two scrapes."""
