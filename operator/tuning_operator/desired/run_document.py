"""TuningRun -> run.json: the resolved run, with every default applied and every path as the pods see it.

Used by `configmap` alone. Defaults of hyperparameters come from the one table of algorithms in the contract.
"""

import json

from tuning_contract import environment, version
from tuning_contract.algorithms import ALGORITHMS, ENGINES
from tuning_contract.directory import relative_path
from tuning_contract.run_document import (
    AlgorithmSettings,
    CheckpointSettings,
    DatasetSettings,
    EngineSettings,
    EvaluationSet,
    ExpectedCluster,
    HubSource,
    LoraSettings,
    MetricsSettings,
    ModelSettings,
    RemoteWrite,
    ResumeFrom,
    RolloutLimits,
    RolloutSettings,
    RunDocument,
    RunIdentity,
    Sampling,
    WorkflowSettings,
)
from tuning_operator.api import v1alpha1_training as training
from tuning_operator.api.v1alpha1 import TuningRun
from tuning_operator.api.v1alpha1_cluster import ClusterSpec
from tuning_operator.api.v1alpha1_execution import MetricsSpec
from tuning_operator.api.v1alpha1_sources import HubDataset
from tuning_operator.desired import names, sources
from tuning_operator.desired.model_source import ModelSource

FIRST_ALGORITHM = "multi_step_grpo"
"""Every runner has it, so nothing is required for it."""


def build(run: TuningRun, source: ModelSource | None = None) -> RunDocument:
    """The document of a run whose engine and algorithm this version has.

    Args:
        run: the run.
        source: the finished run that `spec.model.run` names, if it does.

    Raises:
        KeyError: engine or algorithm is not in the table; the API server's schema and `Accepted` keep such runs away.
        ValueError: the run starts from the model of another one, and `source` is None.
    """
    return RunDocument(
        version=version.VERSION,
        requires=required_features(run),
        run=RunIdentity(run.namespace, run.name, run.uid),
        seed=run.spec.seed,
        engine=_engine(run.spec.engine),
        model=_model(run, source),
        dataset=_dataset(run.spec.dataset),
        algorithm=_algorithm(run.spec.algorithm),
        rollout=_rollout(run.spec.rollout),
        workflow=WorkflowSettings(run.spec.workflow.entrypoint or "", run.spec.workflow.judge),
        checkpoint=_checkpoint(run),
        cluster=_cluster(run.spec.cluster, run.spec.engine.type),
        metrics=_metrics(run.spec.metrics),
    )


def required_features(run: TuningRun) -> tuple[str, ...]:
    """Features that the runner in the image must have, sorted."""
    datasets = [dataset for _, dataset in sources.datasets(run)]
    algorithm = run.spec.algorithm.type
    wanted = {
        run.spec.engine.type.lower(): True,
        f"algorithm:{algorithm}": algorithm != FIRST_ALGORITHM,
        "lora": run.spec.algorithm.lora is not None,
        "chat_template": run.spec.model.chat_template is not None,
        "evaluation": bool(run.spec.dataset.evaluation),
        "workflow_source": run.spec.workflow.source is not None,
        "hub_model": run.spec.model.hugging_face is not None,
        "hub_dataset": any(dataset.hugging_face for dataset in datasets),
        "dataset_split": any(sources.split(dataset) for dataset in datasets),
        "engine_config": bool(run.spec.engine.config),
        "resume_from": run.spec.checkpoint.resume_from is not None,
        "episode_nodes": _cluster(run.spec.cluster, run.spec.engine.type).episode_nodes > 0,
    }
    return tuple(sorted(name for name, needed in wanted.items() if needed))


def _engine(engine: training.EngineSpec) -> EngineSettings:
    return EngineSettings(engine.type, engine.ray_version, json.dumps(engine.config, sort_keys=True))


def _checkpoint(run: TuningRun) -> CheckpointSettings:
    other = run.spec.checkpoint.resume_from
    return CheckpointSettings(
        directory=relative_path(run.namespace, run.name, run.uid),
        claim_name=names.claim(run),
        keep_last=run.spec.checkpoint.keep_last,
        resume_from=ResumeFrom(sources.mount_path(other.claim_name, other.path), other.mode.value) if other else None,
    )


def _cluster(cluster: ClusterSpec, engine: str) -> ExpectedCluster:
    workers = sum(group.replicas for group in cluster.workers)
    return ExpectedCluster(
        nodes=1 + workers,
        gpus=cluster.head.gpus + sum(group.replicas * group.gpus for group in cluster.workers),
        episode_nodes=0 if ENGINES[engine].trains_on_workers else workers,
    )


def _model(run: TuningRun, source: ModelSource | None) -> ModelSettings:
    model = run.spec.model
    template, hub = model.chat_template, model.hugging_face
    token = sources.token_variable(sources.MODEL, hub.token_secret_ref) if hub else None
    return ModelSettings(
        path=sources.model_path(run, source),
        max_model_length=model.max_model_length,
        max_response_tokens=model.max_response_tokens,
        sampling=_sampling(model.sampling),
        chat_template_path=f"{environment.TEMPLATE_MOUNT}/{template.config_map.key}" if template else None,
        hub=HubSource(hub.repo, hub.revision, token_variable=token) if hub else None,
    )


def _dataset(dataset: training.DatasetSpec) -> DatasetSettings:
    return DatasetSettings(
        path=sources.dataset_path("train", dataset.train),
        order=dataset.order.value,
        hidden_fields=dataset.hidden_fields,
        evaluation=tuple(_evaluation(place, entry) for place, entry in enumerate(dataset.evaluation)),
        hub=_hub(sources.TRAIN, dataset.train.hugging_face),
        split=sources.split(dataset.train),
    )


def _evaluation(place: int, entry: training.EvaluationSet) -> EvaluationSet:
    return EvaluationSet(
        name=entry.name,
        path=sources.dataset_path(entry.name, entry),
        samples_per_task=entry.samples_per_task,
        sampling=_sampling(entry.sampling),
        max_tasks=entry.max_tasks,
        hub=_hub(sources.evaluation(place), entry.hugging_face),
        split=sources.split(entry),
    )


def _hub(key: str, hub: HubDataset | None) -> HubSource | None:
    if hub is None:
        return None
    token = sources.token_variable(key, hub.token_secret_ref)
    return HubSource(hub.repo, hub.revision, hub.subset, hub.split, token)


def _algorithm(algorithm: training.AlgorithmSpec) -> AlgorithmSettings:
    row = ALGORITHMS[algorithm.type]
    return AlgorithmSettings(
        type=algorithm.type,
        learning_rate=algorithm.learning_rate,
        group_size=algorithm.group_size,
        batch_size=algorithm.batch_size,
        epochs=algorithm.epochs,
        steps=algorithm.steps,
        save_every_steps=algorithm.save_every_steps,
        evaluate_every_steps=algorithm.evaluate_every_steps or 0,
        kl_coefficient=_given(algorithm.kl_coefficient, row.kl_coefficient),
        clip_range=_given(algorithm.clip_range, row.clip_range),
        gradient_clip=_given(algorithm.gradient_clip, row.gradient_clip),
        warmup_steps=row.warmup_steps if algorithm.warmup_steps is None else algorithm.warmup_steps,
        micro_batch_tokens=algorithm.micro_batch_tokens,
        lora=_lora(algorithm.lora) if algorithm.lora else None,
    )


def _given(value: float | None, default: float) -> float:
    """The value unless it is absent; 0 is a value."""
    return default if value is None else value


def _lora(lora: training.LoraSpec) -> LoraSettings:
    return LoraSettings(rank=lora.rank, alpha=2 * lora.rank if lora.alpha is None else lora.alpha)


def _rollout(rollout: training.RolloutSpec) -> RolloutSettings:
    return RolloutSettings(
        max_attempts=rollout.max_attempts,
        min_group_size=rollout.min_group_size,
        max_failed_ratio=rollout.max_failed_ratio,
        concurrency=rollout.concurrency,
        limits=RolloutLimits(rollout.limits.turns, rollout.limits.seconds),
    )


def _metrics(metrics: MetricsSpec) -> MetricsSettings:
    return MetricsSettings(RemoteWrite(metrics.remote_write.url) if metrics.remote_write else None)


def _sampling(sampling: training.Sampling) -> Sampling:
    return Sampling(sampling.temperature, sampling.top_p)
