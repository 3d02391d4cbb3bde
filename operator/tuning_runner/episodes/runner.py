"""Runs the episodes of a step or of an evaluation: tries, limits, outcomes, records.

Engines make one EpisodeRunner with a started gateway and a started worker pool, all in one event loop.
Not here: advantages and the decision that a step fails (`tuning_runner.groups`), writing the journal.
"""

import asyncio
import contextlib
import dataclasses
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tuning_contract.outcomes import INFRASTRUCTURE, SCORED, Outcome
from tuning_runner.episodes import outcomes
from tuning_runner.episodes.batch import EpisodeBatch, EpisodeResult
from tuning_runner.episodes.errors import RunError, UserCodeError
from tuning_runner.episodes.gateway import Gateway
from tuning_runner.episodes.outcomes import Ending, JudgeFailure
from tuning_runner.episodes.pool import Lease, Pool, WorkerDied, WorkerStuck
from tuning_runner.episodes.record import EVALUATION_PREFIX, EpisodeError, EpisodeRecord, TurnRecord, task_id
from tuning_runner.episodes.rows import rows_of
from tuning_runner.episodes.session import Session, SessionSpec
from tuning_runner.episodes.turns import Turn

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class RunnerSettings:
    """How episodes are tried."""

    run_attempt: int
    max_attempts: int
    """Tries of one episode; only infrastructure failures are tried again."""
    seconds: float
    """Deadline of one try's workflow, and apart from it of its judge."""
    hidden_fields: tuple[str, ...] = ()
    retry_seconds: float = 1.0
    """Wait before the second try; doubled for each further one."""


@dataclass(frozen=True)
class _Episode:
    """One episode of a batch."""

    batch: EpisodeBatch
    task: Mapping[str, Any]
    group: str
    identity: str
    address: str
    """Its part of the URL: training and evaluation of one step do not collide."""
    seed_identity: str


@dataclass(frozen=True)
class _Try:
    """What one try came to."""

    ending: Ending
    reward: float | None
    metrics: Mapping[str, float]
    turns: tuple[Turn, ...]
    response: str
    seed: int
    seconds: float


class EpisodeRunner:
    """One task -> workflow -> judge -> outcome -> record, many at a time."""

    def __init__(self, gateway: Gateway, pool: Pool, settings: RunnerSettings) -> None:
        self._gateway = gateway
        self._pool = pool
        self._settings = settings
        self._abandoned = asyncio.Event()

    async def run(self, batch: EpisodeBatch) -> list[EpisodeResult]:
        """Run all episodes of a batch, as many at a time as the pool has workers; one batch at a time.

        Returns:
            One result for each episode, in the order of tasks, then members.

        Raises:
            UserCodeError: the judge's own code is wrong; the other episodes are stopped.
            RunError: there are no workers any more.
        """
        self._abandoned.clear()
        tasks = [asyncio.create_task(self._episode(episode)) for episode in _episodes(batch)]
        loop = asyncio.get_running_loop()
        limit = None if batch.seconds is None else loop.call_later(batch.seconds, self.abandon)
        try:
            return list(await asyncio.gather(*tasks))
        except BaseException as error:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            if isinstance(error, RunError):
                finished = [task for task in tasks if not task.cancelled() and task.exception() is None]
                error.records = tuple(task.result().record for task in finished)
            raise
        finally:
            if limit is not None:
                limit.cancel()

    def abandon(self) -> None:
        """Close the step in hand: running episodes end as Lost, one that ends in this moment as Late.

        Call it in the runner's event loop.
        """
        self._abandoned.set()

    async def _episode(self, episode: _Episode) -> EpisodeResult:
        for number in range(1, self._settings.max_attempts + 1):
            last = await self._try_or_lost(episode, number)
            outcome, again = last.ending.outcome, last.ending.retry and number < self._settings.max_attempts
            if outcome not in INFRASTRUCTURE or not again or self._abandoned.is_set():
                return self._result(episode, number, last)
            _LOG.warning("episode %s, try %d: %s: %s", episode.identity, number, outcome, _first_line(last.ending))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._settings.retry_seconds * 2 ** (number - 1)):
                    await self._abandoned.wait()
                    return self._result(episode, number, last)
        raise AssertionError("max_attempts is at least 1")

    async def _try_or_lost(self, episode: _Episode, number: int) -> _Try:
        work = asyncio.create_task(self._try(episode, number))
        closing = asyncio.create_task(self._abandoned.wait())
        try:
            await asyncio.wait({work, closing}, return_when=asyncio.FIRST_COMPLETED)
            if not self._abandoned.is_set():
                return work.result()
            if work.done() and not work.cancelled():
                late = Ending(Outcome.LATE, EpisodeError("runner", "StepClosed", "it ended after its step was closed"))
                return dataclasses.replace(work.result(), ending=late, reward=None)
            lost = Ending(Outcome.LOST, EpisodeError("runner", "StepClosed", "its step was abandoned"))
            return _Try(lost, None, {}, (), "", -1, 0.0)
        finally:
            closing.cancel()
            work.cancel()
            await asyncio.wait({work, closing})

    async def _try(self, episode: _Episode, number: int) -> _Try:
        async with self._pool.lease() as lease:
            batch = episode.batch
            session = self._gateway.open(SessionSpec(episode.address, number, episode.seed_identity, batch.sampling))
            started = time.monotonic()
            try:
                reply = await self._workflow(episode, session, lease)
                ending = outcomes.after_workflow(reply, session)
                self._gateway.close(session)
                ending, verdict = await self._graded(episode, session, lease, reply, ending)
            finally:
                self._gateway.close(session)
            return _Try(
                ending=ending,
                reward=verdict.get("reward") if ending.outcome in SCORED else None,
                metrics=dict(reply.get("metrics", {})) | dict(verdict.get("metrics", {})),
                turns=session.turns(),
                response=reply.get("response") or _last_reply(session.turns()),
                seed=session.seed(0),
                seconds=time.monotonic() - started,
            )

    async def _workflow(self, episode: _Episode, session: Session, lease: Lease) -> dict[str, Any]:
        hidden = self._settings.hidden_fields
        order = {
            "task": {name: value for name, value in episode.task.items() if name not in hidden},
            "baseUrl": session.base_url,
            "key": session.key,
            "modelName": session.model_name,
            "seed": session.seed(0),
        }
        try:
            return await lease.workflow(order, self._settings.seconds)
        except WorkerStuck:
            return {"status": outcomes.STUCK}
        except WorkerDied as error:
            return {"status": outcomes.DIED, "text": str(error)}

    async def _graded(
        self, episode: _Episode, session: Session, lease: Lease, reply: Mapping[str, Any], ending: Ending
    ) -> tuple[Ending, Mapping[str, Any]]:
        """The final ending, and reward and metrics of whoever grades: the judge if there is one."""
        if ending.outcome not in SCORED:
            return ending, {}
        if not self._pool.has_judge:
            return ending, {"reward": self._own_reward(reply, ending)}
        order: dict[str, Any] = {"task": dict(episode.task)}
        cut_off = not reply.get("hasResponse") and ending.outcome is Outcome.LIMIT_REACHED
        if cut_off:
            # What the policy said last is all there is to grade.
            order["response"] = _last_reply(session.turns())
        try:
            verdict = await lease.judge(order, self._settings.seconds)
        except WorkerStuck:
            verdict = {"status": outcomes.STUCK}
        except WorkerDied as error:
            verdict = {"status": outcomes.DIED, "text": str(error)}
        judged = outcomes.after_judge(verdict, ending)
        if isinstance(judged, JudgeFailure) and cut_off:
            # A judge of what the workflow really returns need not understand a bare text.
            return outcomes.ungraded(ending, judged), {}
        if isinstance(judged, JudgeFailure):
            raise UserCodeError(f"episode {episode.identity}: {judged.text}")
        return judged, verdict

    def _own_reward(self, reply: Mapping[str, Any], ending: Ending) -> float | None:
        reward: Any = reply.get("reward")
        if reward is None and ending.outcome is Outcome.LIMIT_REACHED:
            return None  # nobody graded it: the group masks it
        if problem := outcomes.reward_problem(reward):
            raise UserCodeError(f"the run has no judge and the workflow returned {problem}")
        return float(reward)

    def _result(self, episode: _Episode, number: int, last: _Try) -> EpisodeResult:
        rows = rows_of(last.turns)
        record = EpisodeRecord(
            mode=episode.batch.mode,
            episode=episode.identity,
            group=episode.group,
            task_id=task_id(episode.task),
            run_attempt=self._settings.run_attempt,
            tries=number,
            seed=last.seed,
            policy_version=episode.batch.policy_version,
            outcome=last.ending.outcome,
            turns=tuple(_turn_record(turn) for turn in last.turns),
            rows=len(rows),
            reward=last.reward,
            error=last.ending.error,
            metrics=last.metrics,
            judge_digest=self._pool.judge_digest,
            seconds=round(last.seconds, 3),
        )
        return EpisodeResult(record, episode.task, last.turns, rows, last.response[:4000])


def _episodes(batch: EpisodeBatch) -> list[_Episode]:
    evaluation = batch.mode.startswith(EVALUATION_PREFIX)
    prefix = batch.mode.replace(":", "-")
    episodes = []
    for number, task in enumerate(batch.tasks):
        group = f"{batch.step}.{number}"
        for member in range(batch.group_size):
            identity = f"{group}.{member}"
            # An evaluation draws the same noise before and after training.
            seed_identity = f"{batch.mode}.{number}.{member}" if evaluation else identity
            episodes.append(_Episode(batch, task, group, identity, f"{prefix}-{identity}", seed_identity))
    return episodes


def _turn_record(turn: Turn) -> TurnRecord:
    return TurnRecord(
        prompt_tokens=len(turn.prompt_ids),
        tokens=len(turn.completion_ids),
        seconds=round(turn.seconds, 4),
        finish=turn.finish,
        sampling={"temperature": turn.sampling.temperature, "topP": turn.sampling.top_p},
    )


def _last_reply(turns: tuple[Turn, ...]) -> str:
    return str(turns[-1].reply["content"]) if turns else ""


def _first_line(ending: Ending) -> str:
    return ending.error.text.partition("\n")[0] if ending.error else ""
