"""TuningRun -> run.json: the resolved run, with every default applied and every path as the pods see it.

Used by `configmap` alone. Defaults of hyperparameters come from the one table of algorithms in the contract.
"""

from tuning_contract import environment, version
from tuning_contract.algorithms import ALGORITHMS
from tuning_contract.directory import relative_path
from tuning_contract.run_document import (
    AlgorithmSettings,
    CheckpointSettings,
    DatasetSettings,
    EngineSettings,
    EvaluationSet,
    ExpectedCluster,
    LoraSettings,
    MetricsSettings,
    ModelSettings,
    RemoteWrite,
    RolloutLimits,
    RolloutSettings,
    RunDocument,
    RunIdentity,
    Sampling,
    WorkflowSettings,
)
from tuning_operator.api import v1alpha1_training as training
from tuning_operator.api.v1alpha1 import TuningRun
from tuning_operator.api.v1alpha1_execution import MetricsSpec
from tuning_operator.desired import names


def build(run: TuningRun) -> RunDocument:
    """The document of a run whose engine and algorithm this version has.

    Raises:
        KeyError: the algorithm is not in the table; the API server's schema and `Accepted` keep such runs away.
    """
    return RunDocument(
        version=version.VERSION,
        requires=required_features(run),
        run=RunIdentity(run.namespace, run.name, run.uid),
        seed=run.spec.seed,
        engine=EngineSettings(run.spec.engine.type, run.spec.engine.ray_version),
        model=_model(run.spec.model),
        dataset=_dataset(run.spec.dataset),
        algorithm=_algorithm(run.spec.algorithm),
        rollout=_rollout(run.spec.rollout),
        workflow=WorkflowSettings(run.spec.workflow.entrypoint or "", run.spec.workflow.judge),
        checkpoint=CheckpointSettings(
            directory=relative_path(run.namespace, run.name, run.uid),
            claim_name=names.claim(run),
            keep_last=run.spec.checkpoint.keep_last,
        ),
        cluster=ExpectedCluster(nodes=1, gpus=run.spec.cluster.head.gpus),
        metrics=_metrics(run.spec.metrics),
    )


def required_features(run: TuningRun) -> tuple[str, ...]:
    """Features that the runner in the image must have, sorted."""
    wanted = {
        run.spec.engine.type.lower(): True,
        "lora": run.spec.algorithm.lora is not None,
        "chat_template": run.spec.model.chat_template is not None,
        "evaluation": bool(run.spec.dataset.evaluation),
        "workflow_source": run.spec.workflow.source is not None,
    }
    return tuple(sorted(name for name, needed in wanted.items() if needed))


def _model(model: training.ModelSpec) -> ModelSettings:
    template = model.chat_template
    return ModelSettings(
        path=model.image.path if model.image else "",
        max_model_length=model.max_model_length,
        max_response_tokens=model.max_response_tokens,
        sampling=_sampling(model.sampling),
        chat_template_path=f"{environment.TEMPLATE_MOUNT}/{template.config_map.key}" if template else None,
    )


def _dataset(dataset: training.DatasetSpec) -> DatasetSettings:
    return DatasetSettings(
        path=_path("train", dataset.train),
        order=dataset.order.value,
        hidden_fields=dataset.hidden_fields,
        evaluation=tuple(
            EvaluationSet(
                name=entry.name,
                path=_path(entry.name, entry),
                samples_per_task=entry.samples_per_task,
                sampling=_sampling(entry.sampling),
                max_tasks=entry.max_tasks,
            )
            for entry in dataset.evaluation
        ),
    )


def _path(folder: str, source: training.TrainingSet | training.EvaluationSet) -> str:
    """Where the pods find a dataset; the API server has checked that exactly one source is set."""
    if source.config_map:
        return f"{environment.DATASETS_MOUNT}/{folder}/{source.config_map.key}"
    return source.image.path if source.image else ""


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
