"""The training of a run on its volume, and the pods in which it runs: the state behind `simulated_cluster`.

The runner keeps to its contract: an attempt begins once, a newer attempt fences it, a stop is asked by a file. The
driver judges by its own real code.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any

from tuning_contract.causes import Cause
from tuning_contract.progress import Progress
from tuning_contract.result import FAILED, STOPPED, SUCCEEDED, RunResult
from tuning_driver.ray_jobs import JobState
from tuning_driver.verdict import Evidence, judge
from tuning_operator.api import meta
from tuning_operator.api.conditions import timestamp
from tuning_operator.api.v1alpha1 import TuningRun
from tuning_operator.desired import names
from tuning_operator.desired.pods import RAY_CONTAINER, RAY_WORKER_CONTAINER

DIGEST = "digest"
_CONTAINERS = {meta.COMPONENT_HEAD: RAY_CONTAINER, meta.COMPONENT_WORKER: RAY_WORKER_CONTAINER}

Move = tuple[str, Callable[[], None]]


@dataclass
class SimulatedPod:
    """One pod; `raw` is what the API server has of it."""

    name: str
    component: str
    attempt: int
    owner: str
    number: int
    run: TuningRun
    phase: str = "Pending"
    ready: bool = False
    ip: str = ""
    started_at: datetime | None = None
    unschedulable: str = ""
    waiting: tuple[str, str] = ("", "")
    """Reason and message of a container that waits."""
    exit_code: int | None = None
    ended_for: str = ""
    words: str = ""
    """Termination message."""
    restarts: int = 0
    deleted_at: datetime | None = None
    disruption: str = ""
    disrupted_at: datetime | None = None
    reason: str = ""
    """Of the pod itself."""
    node_lost: bool = False
    lost_at: datetime | None = None
    follows: str = ""
    """Of a driver: the life of the head on which its training runs."""

    @property
    def deleting(self) -> bool:
        """Whether its end was asked for."""
        return self.deleted_at is not None

    @property
    def serves(self) -> bool:
        """Whether the API server calls it ready, and nobody has asked for its end."""
        return self.ready and not self.node_lost and not self.deleting

    @property
    def life(self) -> str:
        """One life of its container."""
        return f"{self.name}/{self.restarts}"

    def raw(self) -> dict[str, Any]:
        """The object."""
        metadata: dict[str, Any] = {
            "name": self.name,
            "namespace": self.run.namespace,
            "uid": f"uid-of-{self.name}",
            "labels": {
                meta.RUN_UID_LABEL: self.run.uid,
                meta.ATTEMPT_LABEL: str(self.attempt),
                meta.COMPONENT_LABEL: self.component,
            },
            "ownerReferences": [{"uid": self.owner, "controller": True}],
        }
        if self.component == meta.COMPONENT_WORKER:
            metadata["labels"]["ray.io/group"] = self.run.spec.cluster.workers[0].name
        if self.deleted_at is not None:
            metadata["deletionTimestamp"] = timestamp(self.deleted_at)
        status: dict[str, Any] = {"phase": self.phase, "conditions": list(self._conditions())}
        if self.started_at is not None:
            status |= {"startTime": timestamp(self.started_at), "containerStatuses": [self._container()]}
        return {"metadata": metadata, "status": status | {"podIP": self.ip, "reason": self.reason}}

    def _conditions(self) -> Iterator[dict[str, Any]]:
        # The node's controller takes Ready away without a reason; the kubelet's last word stands beside it.
        told = {} if self.node_lost or self.ready else {"reason": "ContainersNotReady"}
        yield {"type": "Ready", "status": "True" if self.ready and not self.node_lost else "False"} | told
        yield {"type": "ContainersReady", "status": "True" if self.ready else "False"}
        yield {"type": "PodReadyToStartContainers", "status": "True" if self.started_at else "False"}
        if self.unschedulable:
            words = {"reason": "Unschedulable", "message": self.unschedulable}
            yield {"type": "PodScheduled", "status": "False"} | words
        if self.disrupted_at is not None:
            since = {"reason": self.disruption, "lastTransitionTime": timestamp(self.disrupted_at)}
            yield {"type": "DisruptionTarget", "status": "True"} | since

    def _container(self) -> dict[str, Any]:
        state: dict[str, Any]
        if self.exit_code is not None:
            state = {"terminated": {"exitCode": self.exit_code, "reason": self.ended_for, "message": self.words}}
        elif self.phase == "Running":
            state = {"running": {}}
        else:
            state = {"waiting": {"reason": self.waiting[0], "message": self.waiting[1]}}
        name = _CONTAINERS.get(self.component, self.component)
        return {"name": name, "state": state, "ready": self.ready, "restartCount": self.restarts}


@dataclass
class Volume:
    """What lies on the claim: it outlives every attempt."""

    run: TuningRun
    started: set[int] = field(default_factory=set)
    current_attempt: int = 0
    checkpoint_step: int = 0
    stops: set[int] = field(default_factory=set)
    """Attempts that were asked to stop."""
    result: RunResult | None = None

    @property
    def checkpoint(self) -> str:
        """Path of the newest complete checkpoint."""
        folder = f"{self.run.namespace}/{names.child(self.run)}/checkpoints"
        return f"{folder}/step-{self.checkpoint_step:06}" if self.checkpoint_step else ""

    def begin(self, attempt: int) -> "Training":
        """A Ray job is submitted: the runner looks at the volume first."""
        training = Training(self, attempt, self.checkpoint_step)
        if self.result is not None and self.result.complete:
            training.state = "SUCCEEDED"
        elif attempt in self.started:
            training.end(FAILED, Cause.HEAD_LOST)
        else:
            self.started.add(attempt)
            self.current_attempt = max(self.current_attempt, attempt)
        return training

    def result_for(self, attempt: int) -> RunResult | None:
        """The result, unless it is how another attempt failed."""
        found = self.result
        return found if found is not None and (found.complete or found.attempt == attempt) else None

    def progress(self, training: "Training | None", attempt: int, moment: float) -> Progress:
        """What the sidecar of an attempt's head reads on the volume."""
        step = training.step if training is not None else self.checkpoint_step
        saved = {"checkpoint_step": self.checkpoint_step, "checkpoint_path": self.checkpoint}
        target = self.run.spec.algorithm.steps or 1
        return Progress(
            attempt,
            step,
            target,
            updated_at=moment,
            checkpoint_saved_at=moment,
            **saved,  # type: ignore[arg-type]
        )

    def driver_says(self, attempt: int, training: "Training | None", lost: str) -> tuple[int, str]:
        """Exit code and termination message of a driver at the end of what it followed."""
        job = JobState(training.state) if training is not None else None
        stall = "no step for an hour" if training is not None and training.stalls else ""
        evidence = Evidence(attempt, DIGEST, self.result_for(attempt), head_loss=lost, job=job, stall=stall)
        verdict = judge(evidence)
        return verdict.exit_code, verdict.message.to_text()


@dataclass
class Training:
    """One Ray job: what one life of a head does."""

    volume: Volume
    attempt: int
    step: int
    state: str = "RUNNING"
    """In Ray's words."""
    stalls: bool = False

    @property
    def ended(self) -> bool:
        """Whether there is nothing more to follow."""
        return self.state != "RUNNING" or self.stalls

    def moves(self) -> Iterator[Move]:
        """What it could do next."""
        target = self.volume.run.spec.algorithm.steps or 1
        if self.state != "RUNNING" or self.stalls:
            return
        if self.volume.current_attempt > self.attempt:
            yield f"attempt {self.attempt} sees a newer one", self.kill
        elif self.attempt in self.volume.stops:
            yield f"attempt {self.attempt} saves and stops", partial(self.end, STOPPED)
        elif self.step < target:
            yield f"attempt {self.attempt} does a step", self._do_step
            if self.step > self.volume.checkpoint_step:
                yield f"attempt {self.attempt} saves", self._save
        else:
            yield f"attempt {self.attempt} finishes", partial(self.end, SUCCEEDED)

    def end(self, outcome: str, cause: str = "") -> None:
        """Write how it ended; whoever stops or finishes saves before."""
        if outcome != FAILED:
            self._save()
        target = self.volume.run.spec.algorithm.steps or 1
        self.volume.result = RunResult(
            run_uid=self.volume.run.uid,
            run_digest=DIGEST,
            attempt=self.attempt,
            outcome=outcome,
            step=self.step,
            target_steps=target,
            finished_at=0.0,
            cause=cause,
            message=f"it ended with {cause}" if cause else "",
            checkpoint=self.volume.checkpoint,
            checkpoint_step=self.volume.checkpoint_step,
            final_model="final" if outcome == SUCCEEDED else "",
        )
        self.state = "SUCCEEDED" if outcome == SUCCEEDED else "FAILED"

    def kill(self) -> None:
        """It ends without a word."""
        self.state = "FAILED"

    def _do_step(self) -> None:
        self.step += 1

    def _save(self) -> None:
        self.volume.checkpoint_step = max(self.volume.checkpoint_step, self.step)
