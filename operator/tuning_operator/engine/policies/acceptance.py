"""Whether the run can be executed here and now; if not it is Rejected, and goes on by itself when it can.

Everything that needs no look-up is refused by the CRD already. Once a child exists a run stays accepted.
"""

from collections.abc import Iterator
from datetime import timedelta

from tuning_contract.algorithms import ALGORITHMS, ENGINES
from tuning_operator.api.conditions import ConditionType, Phase, Reason
from tuning_operator.engine.contribution import Contribution, condition
from tuning_operator.engine.world import Child, RefusalKind, World
from tuning_operator.settings import Settings

LOOK_AGAIN = timedelta(seconds=5)
"""Between two looks at what a rejected run waits for."""
TRY_AGAIN = timedelta(seconds=300)
"""Before a RayCluster that the server refused is tried again: only an administrator can have changed the answer."""

NO_RIGHT = timedelta(seconds=60)
"""Before a read without the right to it is tried again."""
READ = "read"
"""Key of a refused read in `Notes.refusals`."""


def decide(world: World, settings: Settings) -> Contribution | None:
    """Reject, or ask for the ConfigMaps that must be read first."""
    if world.has_children:
        return None
    for reason, message in _known_at_once(world, settings):
        return _rejected(world, reason, message, LOOK_AGAIN)
    wanted = _references(world)
    known = {reference.name: reference for reference in world.notes.references}
    unread = tuple(sorted({name for name, _ in wanted} - set(known)))
    if unread:
        return _unreadable(world) or Contribution(read=unread, final=True)
    missing = _missing(world)
    if missing:
        old = tuple(name for name, item in known.items() if world.now - item.read_at >= LOOK_AGAIN)
        rejected = _rejected(world, Reason.REFERENCE_NOT_FOUND, missing, LOOK_AGAIN)
        return Contribution(read=old, final=True) if old else rejected
    return _refused(world)


def _known_at_once(world: World, settings: Settings) -> Iterator[tuple[Reason, str]]:
    """Reasons that need no reading, most permanent first."""
    spec = world.run.spec
    engine, algorithm = spec.engine.type, ALGORITHMS.get(spec.algorithm.type)
    if engine not in ENGINES or not ENGINES[engine].available:
        able = ", ".join(row.name for row in ENGINES.values() if row.available)
        yield Reason.NOT_AVAILABLE, f"engine {engine} is not available in this version of the operator; {able} is"
    elif algorithm is None or engine not in algorithm.engines:
        yield Reason.NOT_AVAILABLE, f"algorithm {spec.algorithm.type} is not available on engine {engine}"
    if not spec.workflow.image and not settings.runner_image:
        yield Reason.IMAGE_NOT_SET, "set spec.workflow.image: the installation has no runner image of its own"
    if not world.kuberay_served:
        yield Reason.KUBERAY_MISSING, "KubeRay is not installed: the API server does not serve RayClusters (ray.io/v1)"


def _unreadable(world: World) -> Contribution | None:
    """A read that the operator has no right to."""
    refusal = world.notes.refusals.get(READ)
    if refusal is None or world.now >= refusal.at + NO_RIGHT:
        return None
    shown = condition(ConditionType.DEGRADED, True, Reason.FORBIDDEN, refusal.message)
    return Contribution(
        conditions=(shown,),
        reason=Reason.FORBIDDEN,
        message=refusal.message,
        due=refusal.at + NO_RIGHT,
        final=True,
    )


def _references(world: World) -> list[tuple[str, str]]:
    """Name and key of every ConfigMap that the run needs; an empty key needs the ConfigMap only."""
    spec = world.run.spec
    template, train = spec.model.chat_template, spec.dataset.train.config_map
    found = [(template.config_map.name, template.config_map.key)] if template else []
    found += [(train.name, train.key)] if train else []
    found += [(item.config_map.name, item.config_map.key) for item in spec.dataset.evaluation if item.config_map]
    return found + ([(spec.workflow.source.config_map.name, "")] if spec.workflow.source else [])


def _missing(world: World) -> str:
    """What the run refers to and is not there, as a sentence; empty when all is there."""
    keys = {reference.name: reference.keys for reference in world.notes.references}
    namespace, lacks = world.run.namespace, []
    for name, key in _references(world):
        there = keys[name]
        if there is None:
            lacks.append(f"ConfigMap {name} is not in namespace {namespace}")
        elif key and key not in there:
            lacks.append(f"ConfigMap {name} has no key {key}")
    claim = world.run.spec.checkpoint.volume.claim_name
    if claim and not world.claim_found:
        lacks.append(f"PersistentVolumeClaim {claim} is not in namespace {namespace}")
    return "; ".join(dict.fromkeys(lacks))


def _refused(world: World) -> Contribution | None:
    """A RayCluster that the API server will not have: no child exists yet, so the run is not accepted."""
    refusal = world.notes.refusals.get(Child.CLUSTER)
    if refusal is None or refusal.kind is RefusalKind.FORBIDDEN or world.now >= refusal.at + TRY_AGAIN:
        return None
    reason = Reason.NAME_CONFLICT if refusal.kind is RefusalKind.NAME_CONFLICT else Reason.INVALID
    return _rejected(world, reason, refusal.message, refusal.at + TRY_AGAIN - world.now)


def _rejected(world: World, reason: Reason, message: str, again: timedelta) -> Contribution:
    accepted = condition(ConditionType.ACCEPTED, False, reason, message)
    return Contribution(
        phase=Phase.REJECTED,
        reason=reason,
        message=message,
        conditions=(accepted, condition(ConditionType.ADMITTED, False, reason, "the run is not accepted")),
        due=world.now + again,
        final=True,
    )
