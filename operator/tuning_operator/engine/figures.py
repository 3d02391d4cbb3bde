"""Figures of a run as the status shows them: progress, evaluation, checkpoint, and the strings of the columns.

From the sidecar's progress while it runs, from the verdict at the end. Fractions are strings in the API.
"""

import re
from collections.abc import Mapping

from tuning_contract.progress import Progress
from tuning_operator.api import meta
from tuning_operator.api.conditions import timestamp
from tuning_operator.api.v1alpha1_status import (
    CheckpointStatus,
    DisplayStatus,
    EvaluationFigure,
    EvaluationStatus,
    ProgressStatus,
    TuningRunStatus,
    UsageStatus,
)
from tuning_operator.api.v1alpha1_training import ModelSpec
from tuning_operator.desired import names
from tuning_operator.engine.contribution import Verdict, cut
from tuning_operator.engine.times import from_epoch, from_text
from tuning_operator.engine.world import PodView, World

NOTHING = "-"
"""Shown where there is no figure yet, so that no column is empty."""
_EVALUATION = "eval/"
_LONGEST_PATH = 160
"""Bytes of a checkpoint's path; ours have fewer than 150, and half a path is none."""
_LONGEST_MODEL = 64
"""Bytes of the model's name as the column shows it."""
_COMMIT = re.compile("[0-9a-f]{40}")
_LARGE = 1e9
_STEP_DIGITS = 12
_RAY_COMPONENTS = (meta.COMPONENT_HEAD, meta.COMPONENT_WORKER)


def progress_of(world: World, verdict: Verdict | None) -> ProgressStatus:
    """How far the training is."""
    old = world.run.status.progress
    news = fresh_progress(world)
    values: Mapping[str, float] = {}
    step, target, eta, moment = (
        old.step,
        old.target_steps or (world.run.spec.algorithm.steps or 0),
        old.eta_seconds,
        None,
    )
    if news is not None:
        values, step, target = news.values, news.step, news.target_steps or target
        eta = None if news.eta_seconds is None else max(0, round(news.eta_seconds))
        moment = timestamp(from_epoch(news.updated_at)) if news.updated_at else None
    if verdict is not None:
        values = {**values, **verdict.metrics}
        step = step if verdict.step is None else verdict.step
        target, eta = verdict.target_steps or target, 0 if verdict.succeeded else None
        moment = timestamp(world.now)
    return ProgressStatus(
        step=step,
        target_steps=target,
        percent=min(100, step * 100 // target) if target else 0,
        summary=f"{step}/{target or '?'}",
        reward=_figure(values.get("reward_mean"), old.reward),
        loss=_figure(values.get("policy_loss"), old.loss),
        kl=_figure(values.get("kl"), old.kl),
        eta_seconds=eta,
        updated_at=moment or old.updated_at,
    )


def fresh_progress(world: World) -> Progress | None:
    """The sidecar's progress, unless it is another attempt's, or its attempt is over and the last word is written."""
    news = world.notes.progress
    return news if news is not None and news.attempt == world.attempt and not world.attempt_over else None


def checkpoint_of(world: World, verdict: Verdict | None) -> CheckpointStatus:
    """The newest complete checkpoint that was heard of."""
    claim, news, old = names.claim(world.run), fresh_progress(world), world.run.status.checkpoint
    if verdict is not None and is_path(verdict.checkpoint):
        same = old.path == verdict.checkpoint and old.saved_at is not None
        saved = old.saved_at if same else timestamp(world.now)
        step = _step_of(verdict.checkpoint)
        return CheckpointStatus(step=step, path=verdict.checkpoint, claim_name=claim, saved_at=saved)
    if news is None or not is_path(news.checkpoint_path):
        return old
    saved = timestamp(from_epoch(news.checkpoint_saved_at))
    return CheckpointStatus(step=news.checkpoint_step, path=news.checkpoint_path, claim_name=claim, saved_at=saved)


def evaluation_of(world: World, verdict: Verdict | None) -> tuple[EvaluationStatus, ...]:
    """Each set's figure before the first step and the newest one, in the order of the spec."""
    known = {item.dataset: item for item in world.run.status.evaluation}
    for entry in (fresh_progress(world) or Progress(attempt=0)).evaluation:
        figure = EvaluationFigure(step=int(entry["step"]), mean=_mean(entry["mean"]))
        known[entry["dataset"]] = _with_figure(known.get(entry["dataset"]), str(entry["dataset"]), figure)
    if verdict is not None:
        for name, value in verdict.metrics.items():
            _, dataset, side = (
                name.split("/") if name.startswith(_EVALUATION) and name.count("/") == 2 else ("", "", "")
            )
            if side in ("baseline", "last"):
                step = 0 if side == "baseline" else verdict.step or 0
                figure = EvaluationFigure(step=step, mean=_mean(value))
                known[dataset] = _with_figure(known.get(dataset), dataset, figure)
    order = [item.name for item in world.run.spec.dataset.evaluation]
    return tuple(known[name] for name in order if name in known)


def display_of(world: World, status: TuningRunStatus, verdict: Verdict | None) -> DisplayStatus:
    """The strings of the printer columns; none is empty."""
    return DisplayStatus(
        model=cut(_model_column(world.run.spec.model), _LONGEST_MODEL),
        gpus=str(gpus_of(world)),
        evaluation=_evaluation_column(status.evaluation),
        eta=NOTHING if verdict is not None else duration(status.progress.eta_seconds),
    )


def usage_of(world: World) -> UsageStatus:
    """GPU and pod seconds until now, of the present attempt's pods by the time at which each was accepted."""
    attempt, old = world.run.status.attempt, world.run.status.usage
    began = from_text(attempt.start_time)
    if began is None:
        return old
    pods = [pod for pod in world.pods if pod.component in _RAY_COMPONENTS]
    seconds = [max(0.0, (world.now - max(pod.started_at or world.now, began)).total_seconds()) for pod in pods]
    gpu_seconds = sum(_gpus_of(pod, world) * lived for pod, lived in zip(pods, seconds, strict=True))
    return UsageStatus(
        # A pod that went before we looked is still in the older figure.
        gpu_seconds=max(round(gpu_seconds) + (attempt.earlier_gpu_seconds or 0), old.gpu_seconds or 0),
        pod_seconds=max(round(sum(seconds)) + (attempt.earlier_pod_seconds or 0), old.pod_seconds or 0),
        active_seconds=old.active_seconds,
    )


def gpus_of(world: World) -> int:
    """GPUs that the run asks for, in all of its pods."""
    cluster = world.run.spec.cluster
    return cluster.head.gpus + sum(group.replicas * group.gpus for group in cluster.workers)


def _gpus_of(pod: PodView, world: World) -> int:
    """GPUs of one pod, by the spec: a node pool may call its GPUs by any name."""
    cluster = world.run.spec.cluster
    if pod.component == meta.COMPONENT_HEAD:
        return cluster.head.gpus
    return next((group.gpus for group in cluster.workers if group.name == pod.group), 0)


def duration(seconds: int | None) -> str:
    """Seconds for a reader: 45s, 12m, 3h05m, 2d04h."""
    if seconds is None:
        return NOTHING
    if seconds < 60:
        return f"{seconds}s"
    minutes = seconds // 60
    if minutes < 60:
        return f"{minutes}m"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02}m" if hours < 24 else f"{hours // 24}d{hours % 24:02}h"


def _model_column(model: ModelSpec) -> str:
    """The last part of where the model comes from, which names it; of another run, that run."""
    if model.hugging_face:
        source = model.hugging_face
        name = source.repo.rpartition("/")[2]
        # A commit is shown as short as git shows it.
        revision = source.revision[:7] if _COMMIT.fullmatch(source.revision) else source.revision
        return name if revision == "main" else f"{name}@{revision}"
    if model.run:
        return f"{model.run.name}/final"
    if model.volume:
        return (model.volume.path or model.volume.claim_name).rpartition("/")[2]
    path = model.image.path if model.image else ""
    return path.rstrip("/").rpartition("/")[2] or NOTHING


def _step_of(checkpoint: str) -> int | None:
    """The step in a checkpoint's folder name, as in step-000020."""
    digits = checkpoint.rpartition("step-")[2]
    return int(digits) if digits.isdecimal() and len(digits) <= _STEP_DIGITS else None


def _with_figure(known: EvaluationStatus | None, dataset: str, figure: EvaluationFigure) -> EvaluationStatus:
    known = known or EvaluationStatus(dataset=dataset)
    return known.model_copy(update={"baseline" if figure.step == 0 else "last": figure})


def _evaluation_column(evaluation: tuple[EvaluationStatus, ...]) -> str:
    if not evaluation:
        return NOTHING
    first = evaluation[0]
    before = first.baseline.mean if first.baseline else NOTHING
    if first.last is None:
        return _short(before)
    return f"{_short(before)} -> {_short(first.last.mean)}"


def _short(mean: str) -> str:
    return mean if mean == NOTHING or abs(float(mean)) >= _LARGE else f"{float(mean):.2f}"


def _mean(value: float) -> str:
    """Three digits after the point; a value that no reward has is not written out."""
    return f"{float(value):.3f}" if abs(value) < _LARGE else f"{float(value):.1e}"


def is_path(path: str) -> bool:
    """Whether it can be a checkpoint of ours: it is there, and not too long."""
    return bool(path) and cut(path, _LONGEST_PATH) == path


def _figure(value: float | None, old: str | None) -> str:
    """Three digits after the point, or the exponent where that would show nothing."""
    if value is None:
        return old or NOTHING
    return _mean(value) if value == 0 or not abs(value) < 0.001 else f"{value:.1e}"
