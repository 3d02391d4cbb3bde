"""What this process alone knows of each run, until the run is gone.

`execute` and `progress` write, `observe` reads. A restart loses it all, and nothing goes wrong by that: every entry
is either asked again or only spares a write.
"""

from dataclasses import dataclass, field
from datetime import datetime

from tuning_contract.progress import Progress
from tuning_contract.result import RunResult
from tuning_operator.engine.world import Child, Notes, PodView, Reachability, Reference, Refusal, StopAnswer

_DEPARTED = 4
"""Views of departed pods that are kept of each component of one run."""


@dataclass(slots=True)
class RunMemory:
    """Notes of one run; `Notes` says what each means."""

    first_seen: datetime
    attempt: int = 0
    """Whose the words are that are kept below."""
    status_written: datetime | None = None
    config_made: bool = False
    references: dict[str, Reference] = field(default_factory=dict)
    patch_problems: tuple[int, tuple[str, ...]] | None = None
    """Generation of the spec that was looked at, and what was found."""
    refusals: dict[str, Refusal] = field(default_factory=dict)
    signatures: dict[str, tuple[str, datetime]] = field(default_factory=dict)
    progress: Progress | None = None
    metrics: Reachability = Reachability.NOT_ASKED
    result: RunResult | None = None
    result_asked: Reachability = Reachability.NOT_ASKED
    departed: list[PodView] = field(default_factory=list)
    stop: StopAnswer = StopAnswer.NOT_ASKED
    stop_asked_at: datetime | None = None
    looked_at: datetime | None = None

    def notes(self) -> Notes:
        """A frozen copy for the engine."""
        return Notes(
            first_seen=self.first_seen,
            status_written=self.status_written,
            config_made=self.config_made,
            references=tuple(self.references.values()),
            patch_problems=self.patch_problems[1] if self.patch_problems else None,
            refusals=dict(self.refusals),
            since={fact: since for fact, (_, since) in self.signatures.items()},
            progress=self.progress,
            metrics=self.metrics,
            result=self.result,
            result_asked=self.result_asked,
            departed=tuple(self.departed),
            stop=self.stop,
            stop_asked_at=self.stop_asked_at,
            looked_at=self.looked_at,
        )

    def begin(self, attempt: int) -> None:
        """Another attempt is the present one: nothing of the one before may speak for it."""
        if attempt == self.attempt:
            return
        self.attempt = attempt
        self.progress, self.metrics = None, Reachability.NOT_ASKED
        self.result, self.result_asked = None, Reachability.NOT_ASKED
        self.stop, self.stop_asked_at, self.looked_at = StopAnswer.NOT_ASKED, None, None
        self.departed = []
        self.signatures = {}
        for child in (Child.CLUSTER, Child.JOB):
            self.refusals.pop(child, None)

    def rest(self) -> None:
        """The run has ended, and its status has what was said: thousands of ended ones lie in memory for long."""
        self.progress, self.result, self.departed = None, None, []

    def note_signatures(self, signatures: dict[str, str], now: datetime) -> bool:
        """Keep since when each fact has its value; returns whether one changed."""
        known = self.signatures
        changed = {name: value for name, value in signatures.items() if name not in known or known[name][0] != value}
        for name, value in changed.items():
            self.signatures[name] = (value, now)
        return bool(changed)

    def note_departure(self, pod: PodView) -> None:
        """Keep the last view of a pod of this attempt, oldest first; heads that come and go push out no driver."""
        if pod.attempt != self.attempt:
            return
        same = [view for view in self.departed if view.component == pod.component]
        surplus = same[: max(0, len(same) + 1 - _DEPARTED)]
        self.departed = [*(view for view in self.departed if view not in surplus), pod]


class Memory:
    """The memories of all runs, by UID."""

    def __init__(self) -> None:
        """Know nothing."""
        self._runs: dict[str, RunMemory] = {}

    def of(self, uid: str, now: datetime) -> RunMemory:
        """The run's memory, made at first sight."""
        found = self._runs.get(uid)
        if found is None:
            found = self._runs[uid] = RunMemory(now)
        return found

    def peek(self, uid: str) -> RunMemory | None:
        """The run's memory, if it was ever seen."""
        return self._runs.get(uid)

    def forget(self, uid: str) -> None:
        """The run is gone."""
        self._runs.pop(uid, None)
