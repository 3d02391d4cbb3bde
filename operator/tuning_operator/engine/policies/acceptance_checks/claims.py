"""The claims that the run names exist, and their access modes let its pods use them as they must."""

from collections.abc import Iterator

from tuning_operator.api.conditions import Reason
from tuning_operator.api.v1alpha1_execution import AccessMode
from tuning_operator.engine import references
from tuning_operator.engine.policies.acceptance_checks.problem import Problem
from tuning_operator.engine.references import ClaimUse
from tuning_operator.engine.world import ClaimView, World
from tuning_operator.settings import Settings

_WRITABLE = frozenset(AccessMode)


def check(world: World, settings: Settings) -> Iterator[Problem]:
    """Yield ReferenceNotFound and ClaimUnfit."""
    uses = references.claims(world.run, settings, world.model_source)
    for use in uses:
        claim = world.claims.get(use.name)
        if claim is None or claim.deleting:
            state = "is being deleted" if claim else f"is not in namespace {world.run.namespace}"
            text = f"{use.user} needs PersistentVolumeClaim {use.name}, which {state}: create it"
            yield Problem(Reason.REFERENCE_NOT_FOUND, text)
        elif use.writes and not claim.access_modes & _WRITABLE:
            modes = ", ".join(sorted(claim.access_modes)) or "no access mode"
            text = f"{use.user} must write to PersistentVolumeClaim {use.name}, which has {modes}"
            yield Problem(Reason.CLAIM_UNFIT, f"{text}: use a claim with ReadWriteMany")
    for name, claim in world.claims.items():
        yield from _shared(world, [use for use in uses if use.name == name], claim)


def _shared(world: World, uses: list[ClaimUse], claim: ClaimView) -> Iterator[Problem]:
    """Several pods on a claim that lets in one."""
    if not uses or claim.access_modes != {AccessMode.READ_WRITE_ONCE_POD}:
        return
    groups = {group for use in uses for group in use.groups}
    pods = sum(number for group, number in references.pods_of(world.run).items() if group in groups)
    if pods > 1:
        text = (
            f"{uses[0].user} lets {pods} pods mount PersistentVolumeClaim {uses[0].name}, which has ReadWriteOncePod: "
            "use a claim with ReadWriteMany, or with ReadWriteOnce if all pods fit on one node"
        )
        yield Problem(Reason.CLAIM_UNFIT, text)
