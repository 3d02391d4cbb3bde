"""What a run reads from outside: claims to mount, repositories of the hub, tokens; and where the pods find each.

Used by `run_document`, which tells the runner the paths, and by the builders of pods, which make them exist. Both ask
here, so that they agree.
"""

from collections.abc import Iterator
from pathlib import Path

from tuning_contract import environment
from tuning_contract.directory import RunDirectory, relative_path
from tuning_operator.api.v1alpha1 import TuningRun
from tuning_operator.api.v1alpha1_sources import KeyReference
from tuning_operator.api.v1alpha1_training import EvaluationSet, TrainingSet
from tuning_operator.desired.model_source import ModelSource

Dataset = TrainingSet | EvaluationSet

MODEL = "MODEL"
TRAIN = "TRAIN"


def evaluation(place: int) -> str:
    """The key of an evaluation set, by its place from 0: names may have characters that a variable cannot."""
    return f"EVALUATION_{place}"


def token_variable(key: str, token: KeyReference | None) -> str | None:
    """Name of the variable with the token of the model or dataset with this key; None if it has no token."""
    return f"{environment.HUB_TOKEN_PREFIX}{key}" if token else None


def tokens(run: TuningRun) -> dict[str, KeyReference]:
    """Secrets with tokens of the hub, by the name of the variable that gets each."""
    model = run.spec.model.hugging_face
    wanted = {MODEL: model.token_secret_ref} if model else {}
    for key, dataset in datasets(run):
        if dataset.hugging_face:
            wanted[key] = dataset.hugging_face.token_secret_ref
    return {f"{environment.HUB_TOKEN_PREFIX}{key}": token for key, token in wanted.items() if token}


def uses_hub(run: TuningRun) -> bool:
    """Whether model or tasks are downloaded."""
    return bool(run.spec.model.hugging_face) or any(dataset.hugging_face for _, dataset in datasets(run))


def claims(run: TuningRun, source: ModelSource | None) -> tuple[str, ...]:
    """Claims that hold a model, tasks or another run's checkpoints, each once."""
    found = [source.claim_name] if source and run.spec.model.run else []
    if run.spec.model.volume:
        found.append(run.spec.model.volume.claim_name)
    found += [dataset.volume.claim_name for _, dataset in datasets(run) if dataset.volume]
    if run.spec.checkpoint.resume_from:
        found.append(run.spec.checkpoint.resume_from.claim_name)
    return tuple(dict.fromkeys(found))


def mount_path(claim: str, path: str | None = None) -> str:
    """Where the pods see a claim that is a source, or what is at a path on it."""
    return "/".join((environment.CLAIMS_MOUNT, claim, *([path] if path else ())))


def model_path(run: TuningRun, source: ModelSource | None) -> str:
    """Folder of the base model in the pods; empty when it comes from the hub.

    Raises:
        ValueError: the model is that of another run, and nobody has looked that up.
    """
    model = run.spec.model
    if model.image:
        return model.image.path
    if model.volume:
        return mount_path(model.volume.claim_name, model.volume.path)
    if model.run is None:
        return ""
    if source is None:
        raise ValueError(f"run {model.run.name}, which has the model, must be looked up before anything is built")
    folder = relative_path(run.namespace, source.run_name, source.run_uid)
    return str(RunDirectory(Path(mount_path(source.claim_name)) / folder).final)


def dataset_path(folder: str, dataset: Dataset) -> str:
    """File or folder of tasks in the pods; empty when they come from the hub.

    Args:
        folder: name of the folder of a dataset from a ConfigMap.
        dataset: exactly one of its sources is set, as the API server has checked.
    """
    if dataset.config_map:
        return f"{environment.DATASETS_MOUNT}/{folder}/{dataset.config_map.key}"
    if dataset.volume:
        return mount_path(dataset.volume.claim_name, dataset.volume.path)
    return dataset.image.path if dataset.image else ""


def split(dataset: Dataset) -> str | None:
    """Which files of a folder are meant; None leaves the choice to the runner."""
    file = dataset.volume or dataset.image
    return file.split if file else None


def datasets(run: TuningRun) -> Iterator[tuple[str, Dataset]]:
    """Training and evaluation sets, each with its key."""
    yield TRAIN, run.spec.dataset.train
    for place, dataset in enumerate(run.spec.dataset.evaluation):
        yield evaluation(place), dataset
