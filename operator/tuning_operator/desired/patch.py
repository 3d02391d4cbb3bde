"""Merging a run's `podTemplatePatch` into the pod template that the operator builds.

Used by `pod_template`. Objects merge by key and null removes a key; lists whose entries have a name merge by it, the
template's own entries first; what is appended and what is replaced, the tables below say. `$patch` in an object is
Kubernetes' own directive: `replace` puts the object in the place of the template's, `delete` removes it. It is there
because `kubectl apply`, unless the server applies, loses every null. Whether the result may be used is the business of
`patch_guard`.
"""

import copy
from collections.abc import Mapping
from typing import Any

from tuning_operator.desired.fragments import Manifest

Path = tuple[str, ...]
"""Keys from the template's root on; an entry of a list is `containers[ray-head]`."""

DEEPEST = 32
"""Levels of a patch; a pod template has about ten."""

DIRECTIVE = "$patch"
REPLACE = "replace"
DELETE = "delete"

_SPEC_KEYS = {"containers": "name", "initContainers": "name", "volumes": "name"}
_CONTAINER_KEYS = {"env": "name", "ports": "name", "volumeMounts": "mountPath"}
_APPENDED = ("tolerations", "imagePullSecrets")
_MERGED_ENTRIES = ("containers", "initContainers", "volumeMounts")
"""Entries of the other named lists are replaced as a whole: a volume or a variable has one source."""


class PatchRefused(ValueError):  # noqa: N818 - says what happened, as the names in `errors` do
    """A patch that cannot be merged, or whose result is not allowed."""

    def __init__(self, path: Path, advice: str) -> None:
        """`path` is the place in the template, `advice` says what is wrong there and what to do."""
        super().__init__(f"`{'.'.join(('podTemplatePatch', *path))}` {advice}")
        self.path = path
        self.advice = advice


def merge(template: Mapping[str, Any], patch: Mapping[str, Any]) -> Manifest:
    """The template with the patch merged in; neither is changed, and none of the patch is shared.

    Raises:
        PatchRefused: a part of the patch has another type than the template has there.
    """
    level: list[Any] = [patch]
    for _ in range(DEEPEST):
        inside = (item for part in level for item in (part.values() if isinstance(part, Mapping) else part))
        level = [item for item in inside if isinstance(item, Mapping | list)]
    if level:
        raise PatchRefused((), f"must not be nested more than {DEEPEST} levels deep: no pod has that many")
    return _merged(template, patch, ())


def list_keys(path: Path) -> Mapping[str, str]:
    """The lists of an object whose entries have names, with the key that holds the name."""
    if path == ("spec",):
        return _SPEC_KEYS
    inside_container = len(path) == 2 and path[1].startswith(("containers[", "initContainers["))
    return _CONTAINER_KEYS if inside_container else {}


def entries(found: list[Manifest], name_key: str, path: Path) -> dict[Path, Manifest]:
    """The entries of a list with names, by their paths."""
    return {(*path[:-1], f"{path[-1]}[{entry[name_key]}]"): entry for entry in found}


def _merged(template: Mapping[str, Any], patch: Mapping[str, Any], path: Path) -> Manifest:
    directive = patch.get(DIRECTIVE)
    if directive not in (None, REPLACE, DELETE):
        raise PatchRefused((*path, DIRECTIVE), f"must be {REPLACE} or {DELETE}")
    result = {} if directive == REPLACE else dict(template)
    for key, value in patch.items():
        here = (*path, key)
        if key == DIRECTIVE:
            continue
        if _removes(value):
            result.pop(key, None)
        elif key in (keys := list_keys(path)):
            result[key] = _merged_by_name(result.get(key) or [], _objects(value, here), keys[key], here)
        elif path == ("spec",) and key in _APPENDED:
            result[key] = [*(result.get(key) or []), *copy.deepcopy(_objects(value, here))]
        else:
            result[key] = _merged_value(result.get(key), value, here)
    return result


def _removes(value: Any) -> bool:
    return value is None or (isinstance(value, Mapping) and value.get(DIRECTIVE) == DELETE)


def _merged_value(old: Any, new: Any, path: Path) -> Any:
    if isinstance(new, Mapping):
        if old is not None and not isinstance(old, Mapping):
            raise PatchRefused(path, "must not be an object")
        return _merged(old or {}, new, path)
    if isinstance(old, Mapping):
        raise PatchRefused(path, "must be an object, or null to remove it")
    if isinstance(old, list) and not isinstance(new, list):
        raise PatchRefused(path, "must be a list, or null to remove it")
    return copy.deepcopy(new)


def _objects(value: Any, path: Path) -> list[Manifest]:
    if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value):
        raise PatchRefused(path, "must be a list of objects, or null to remove it")
    return value


def _merged_by_name(old: list[Manifest], new: list[Manifest], name_key: str, path: Path) -> list[Manifest]:
    result = {entry[name_key]: entry for entry in old}
    for entry in new:
        name = entry.get(name_key)
        if not isinstance(name, str) or not name:
            raise PatchRefused(path, f"each entry must have `{name_key}`, by which it is merged: add it")
        if _removes(entry):
            result.pop(name, None)
            continue
        before = result.get(name, {}) if path[-1] in _MERGED_ENTRIES else {}
        result[name] = _merged(before, entry, (*path[:-1], f"{path[-1]}[{name}]"))
    return list(result.values())
