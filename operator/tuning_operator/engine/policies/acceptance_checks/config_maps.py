"""The ConfigMaps that the run names exist and have the keys.

They are not watched: the policy `acceptance` has them read, and this check tells of those that were.
"""

from collections.abc import Iterator
from datetime import datetime

from tuning_operator.api.conditions import Reason
from tuning_operator.engine import references
from tuning_operator.engine.policies.acceptance_checks.problem import Problem
from tuning_operator.engine.references import ConfigMapUse
from tuning_operator.engine.world import Reference, World
from tuning_operator.settings import Settings

_SHOWN = 3
"""Keys of a ConfigMap that are named beside the one that it lacks."""


def unread(world: World, settings: Settings) -> tuple[str, ...]:
    """Names of those that were not read yet, sorted."""
    known = {reference.name for reference in world.notes.references}
    return tuple(sorted({use.name for use in references.config_maps(world.run, settings)} - known))


def missing(world: World, settings: Settings) -> tuple[Reference, ...]:
    """Those that lack something, as they were read."""
    found = {use.name for use, _ in _lacking(world, settings)}
    return tuple(reference for reference in world.notes.references if reference.name in found)


def last_read(world: World, settings: Settings, before: datetime) -> tuple[str, ...]:
    """Names of those that were last read before a moment, sorted."""
    wanted = {use.name for use in references.config_maps(world.run, settings)}
    return tuple(sorted(item.name for item in world.notes.references if item.name in wanted and item.read_at < before))


def check(world: World, settings: Settings) -> Iterator[Problem]:
    """Yield ReferenceNotFound for every one of those read that is not there or lacks a key."""
    for use, reference in _lacking(world, settings):
        if reference.keys is None:
            text = f"ConfigMap {use.name}, which is not in namespace {world.run.namespace}: create it"
        else:
            has = ", ".join(sorted(reference.keys)[:_SHOWN]) or "no keys"
            more = ", ..." if len(reference.keys) > _SHOWN else ""
            text = f"key {use.key} of ConfigMap {use.name}, which has {has}{more}: add it"
        yield Problem(Reason.REFERENCE_NOT_FOUND, f"{use.user} needs {text}")


def _lacking(world: World, settings: Settings) -> Iterator[tuple[ConfigMapUse, Reference]]:
    known = {reference.name: reference for reference in world.notes.references}
    for use in references.config_maps(world.run, settings):
        reference = known.get(use.name)
        if reference is not None and (reference.keys is None or (use.key and use.key not in reference.keys)):
            yield use, reference
