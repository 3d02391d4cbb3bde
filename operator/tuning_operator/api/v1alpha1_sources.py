"""Where a model, tasks or code come from: the parts of `spec` that point at something outside the run.

Used by `v1alpha1_training` and `v1alpha1_execution`. A secret is only ever referred to, never written into a run.
"""

from typing import Annotated, ClassVar

from pydantic import Field

from tuning_operator.api.model import (
    VARIABLE_PATTERN,
    VARIABLE_WORDS,
    ApiModel,
    ConfigKey,
    ObjectName,
    Path,
    RelativePath,
    Rule,
    exactly_one,
    in_words,
    rule,
)

REPOSITORY_PATTERN = r"^[A-Za-z0-9][-._A-Za-z0-9]*(/[-._A-Za-z0-9]+)?$"
REVISION_PATTERN = r"^[-._/A-Za-z0-9]+$"
SPLIT_PATTERN = r"^[-._A-Za-z0-9]+$"
HUB_SPLIT_PATTERN = r"^[-._A-Za-z0-9]+(\[(-?[0-9]+%?)?:(-?[0-9]+%?)?\])?$"

Repository = Annotated[
    str,
    Field(
        min_length=1,
        max_length=192,
        pattern=REPOSITORY_PATTERN,
        json_schema_extra=in_words("must be owner/name, such as Qwen/Qwen3-0.6B, as the address of the hub shows it"),
    ),
]
Revision = Annotated[
    str,
    Field(
        min_length=1,
        max_length=128,
        pattern=REVISION_PATTERN,
        json_schema_extra=in_words("must be a branch, tag or commit, such as main"),
    ),
]
Split = Annotated[
    str,
    Field(
        min_length=1,
        max_length=63,
        pattern=SPLIT_PATTERN,
        json_schema_extra=in_words("must be letters, digits, hyphens, underscores and dots, such as train"),
    ),
]

_TASK_FILE = r"\\.(jsonl|json|csv)(\\.gz)?$|\\.parquet$"
"""How the name of a file with tasks ends, as the runner's reader has it; for a text in a rule."""

_SPLIT_OF_A_FOLDER = rule(
    f"!has(self.split) || !has(self.path) || !self.path.matches('{_TASK_FILE}')",
    "`split` must not be set with one file, of which it cannot choose any: leave it out, or let `path` be a folder",
    "split",
)
_KEY_WITH_AN_ENDING = rule(
    # Absent while the server judges the default of its parent.
    f"!has(self.key) || self.key.matches('{_TASK_FILE}')",
    "`key` must end with .jsonl, .json, .csv (these also with .gz) or .parquet, which says how the tasks are written: "
    "rename it in the ConfigMap, too",
    "key",
)


class KeyReference(ApiModel):
    """One key of a Secret or ConfigMap in the run's namespace."""

    name: Annotated[ObjectName, Field(examples=["hugging-face"])]
    """Name of the Secret or ConfigMap, in the run's namespace."""
    key: Annotated[ConfigKey, Field(examples=["token"])]
    """Key whose value is used."""


class NameReference(ApiModel):
    """An object in the run's namespace, by its name."""

    name: Annotated[ObjectName, Field(examples=["registry"])]
    """Name of the object, in the run's namespace."""


class HubModel(ApiModel):
    """A model of the Hugging Face hub."""

    repo: Annotated[Repository, Field(examples=["Qwen/Qwen3-0.6B"])]
    """Repository on the hub, as owner/name. It is downloaded once into the cache on the run's claim."""
    revision: Annotated[Revision, Field(examples=["main"])] = "main"
    """Branch, tag or commit of the repository; a commit makes the run repeatable."""
    token_secret_ref: KeyReference | None = None
    """Key of a Secret that holds an access token of the hub, for a private or gated repository."""


class HubDataset(ApiModel):
    """A dataset of the Hugging Face hub."""

    repo: Annotated[Repository, Field(examples=["openai/gsm8k"])]
    """Repository on the hub, as owner/name. It is downloaded once into the cache on the run's claim."""
    subset: Annotated[Split, Field(examples=["main"])] | None = None
    """Subset, also called configuration, of the dataset. Without it: the default one of the dataset."""
    split: Annotated[
        str,
        Field(
            min_length=1,
            max_length=95,
            pattern=HUB_SPLIT_PATTERN,
            json_schema_extra=in_words("must be a split or a part of one, such as train, train[:2000] or train[90%:]"),
            examples=["train[:2000]"],
        ),
    ]
    """Split of the dataset whose rows are the tasks, or a part of one, by numbers of rows or in percent."""
    revision: Annotated[Revision, Field(examples=["main"])] = "main"
    """Branch, tag or commit of the repository; a commit makes the run repeatable."""
    token_secret_ref: KeyReference | None = None
    """Key of a Secret that holds an access token of the hub, for a private or gated repository."""


class ImageModel(ApiModel):
    """A model in the workflow image."""

    path: Annotated[Path, Field(examples=["/opt/models/SmolLM2-135M-Instruct"])]
    """Absolute path of a Hugging Face folder in the file system of the workflow image."""


class ClaimModel(ApiModel):
    """A model on a claim."""

    claim_name: Annotated[ObjectName, Field(examples=["models"])]
    """PersistentVolumeClaim in the run's namespace; it is mounted read-only."""
    path: Annotated[RelativePath, Field(examples=["Qwen3-0.6B"])] | None = None
    """Path of a Hugging Face folder, relative to the root of the claim. Without it: the root."""


class RunModel(ApiModel):
    """The final model of another run."""

    name: Annotated[ObjectName, Field(examples=["math-agent"])]
    """TuningRun in the same namespace. This run waits, with Accepted=False, until that one has succeeded."""


class ImageFile(ApiModel):
    """Tasks in the workflow image."""

    validations: ClassVar[tuple[Rule, ...]] = (_SPLIT_OF_A_FOLDER,)

    path: Annotated[Path, Field(examples=["/opt/data/train.jsonl"])]
    """Absolute path in the file system of the workflow image of a file (.jsonl, .json, .parquet or .csv; all but
    .parquet also with .gz) or of a folder of such files."""
    split: Annotated[Split, Field(examples=["train"])] | None = None
    """Files to take from a folder: those that are named after this split, or lie in a folder of its name. Without it:
    train for the training tasks, the first of test, validation and heldout for a held-out set, or all files if none is
    named after a split."""


class ClaimFile(ApiModel):
    """Tasks on a claim."""

    validations: ClassVar[tuple[Rule, ...]] = (_SPLIT_OF_A_FOLDER,)

    claim_name: Annotated[ObjectName, Field(examples=["data"])]
    """PersistentVolumeClaim in the run's namespace; it is mounted read-only."""
    path: Annotated[RelativePath, Field(examples=["gsm8k/train.jsonl"])] | None = None
    """Path, relative to the root of the claim, of a file (.jsonl, .json, .parquet or .csv; all but .parquet also with
    .gz) or of a folder of such files. Without it: the root, as such a folder."""
    split: Annotated[Split, Field(examples=["train"])] | None = None
    """Files to take from a folder: those that are named after this split, or lie in a folder of its name. Without it:
    train for the training tasks, the first of test, validation and heldout for a held-out set, or all files if none is
    named after a split."""


class TrainingKey(ApiModel):
    """Training tasks in a ConfigMap."""

    validations: ClassVar[tuple[Rule, ...]] = (_KEY_WITH_AN_ENDING,)

    name: Annotated[ObjectName, Field(examples=["math-tasks"])]
    """Name of the ConfigMap, in the run's namespace."""
    key: Annotated[ConfigKey, Field(examples=["train.jsonl"])] = "train.jsonl"
    """Key in the ConfigMap whose value holds the tasks; its ending says how: .jsonl, .json or .csv, or in
    `binaryData` also one of these with .gz, or .parquet."""


class EvaluationKey(ApiModel):
    """Held-out tasks in a ConfigMap."""

    validations: ClassVar[tuple[Rule, ...]] = (_KEY_WITH_AN_ENDING,)

    name: Annotated[ObjectName, Field(examples=["math-tasks"])]
    """Name of the ConfigMap, in the run's namespace."""
    key: Annotated[ConfigKey, Field(examples=["heldout.jsonl"])] = "heldout.jsonl"
    """Key in the ConfigMap whose value holds the tasks; its ending says how: .jsonl, .json or .csv, or in
    `binaryData` also one of these with .gz, or .parquet."""


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


class SourceMap(ApiModel):
    """A ConfigMap with Python files."""

    name: Annotated[ObjectName, Field(examples=["math-agent-code"])]
    """Name of the ConfigMap, in the run's namespace; each key is a file, such as math_agent.py."""


class WorkflowSource(ApiModel):
    """Code that is not in the image."""

    config_map: SourceMap
    """The ConfigMap whose files are put on PYTHONPATH; it holds at most 1 MiB."""


class VariableSource(ApiModel):
    """Where the value of a variable comes from."""

    validations: ClassVar[tuple[Rule, ...]] = (exactly_one("secretKeyRef", "configMapKeyRef"),)

    secret_key_ref: KeyReference | None = None
    """Key of a Secret that holds the value."""
    config_map_key_ref: KeyReference | None = None
    """Key of a ConfigMap that holds the value."""


class VariablesSource(ApiModel):
    """A Secret or ConfigMap of which every key becomes a variable."""

    validations: ClassVar[tuple[Rule, ...]] = (
        exactly_one("secretRef", "configMapRef"),
        rule(
            "!has(self.prefix) || !(self.prefix.startsWith('TUNING_') || self.prefix.startsWith('RAY_'))",
            "`prefix` must not begin with TUNING_ or RAY_, as the variables of the operator and of Ray do: choose "
            "another, such as TOOL_",
            "prefix",
        ),
    )

    prefix: (
        Annotated[
            str,
            Field(
                min_length=1,
                max_length=63,
                pattern=VARIABLE_PATTERN,
                json_schema_extra=in_words(VARIABLE_WORDS),
                examples=["TOOL_"],
            ),
        ]
        | None
    ) = None
    """Text that is put before every key to make the name of its variable. Without it: the key alone."""
    secret_ref: NameReference | None = None
    """Secret whose keys become variables of the Ray containers."""
    config_map_ref: NameReference | None = None
    """ConfigMap whose keys become variables of the Ray containers."""
