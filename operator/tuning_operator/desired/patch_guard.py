"""What a `podTemplatePatch` may not do: take away the operator's own parts, or ask for host access and privileges.

Used by `pod_template` on the merged template. A restricted namespace refuses the second kind, too; here it is told
before anything is made, and in other namespaces as well.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any

from tuning_operator.api import meta
from tuning_operator.api.v1alpha1_cluster import RESERVED_MOUNTS
from tuning_operator.api.v1alpha1_execution import RESERVED_VARIABLES
from tuning_operator.api.v1alpha1_spec import RESERVED_LABELS
from tuning_operator.desired.fragments import Manifest
from tuning_operator.desired.mounts import USER_PREFIX
from tuning_operator.desired.patch import PatchRefused, Path, entries, list_keys
from tuning_operator.desired.pods import RAY_CONTAINER, RAY_WORKER_CONTAINER, SIDECAR_CONTAINER

_RAY = (f"containers[{RAY_CONTAINER}]", f"containers[{RAY_WORKER_CONTAINER}]")
_SIDECAR = f"initContainers[{SIDECAR_CONTAINER}]"


def _anything(_: Any) -> bool:
    return True


def _off(value: Any) -> bool:
    return value in (None, False, 0)


def _confined(value: Any) -> bool:
    return bool(value != "Unconfined")


# Keys, below `spec`, that open the host or give privileges: which values are harmless, and what to do.
_FORBIDDEN: dict[str, tuple[Callable[[Any], bool], str]] = {
    "hostPath": (_off, "must not be used: mount a claim, a ConfigMap, a Secret or an emptyDir"),
    "hostNetwork": (_off, "must not be true: pods keep to their own network; leave it out"),
    "hostPID": (_off, "must not be true: pods do not see the host's processes; leave it out"),
    "hostIPC": (_off, "must not be true: pods do not share the host's memory; leave it out"),
    "hostPort": (_off, "must not be used: reach the pod through a Service; leave it out"),
    "hostProcess": (_off, "must not be true: pods do not run on the host; leave it out"),
    "privileged": (_off, "must not be true: leave it out"),
    "allowPrivilegeEscalation": (_off, "must not be true: leave it out"),
    "runAsNonRoot": (lambda value: value is not False, "must not be false: use an image with a user other than root"),
    "runAsUser": (lambda value: value != 0, "must not be 0, which is root: use another user"),
    "sysctls": (lambda value: not value, "must be empty: pods do not change the kernel; leave it out"),
    "resourceClaims": (lambda value: not value, "must not be used: ask for `gpus`, which Ray is told"),
    "nodeName": (lambda value: value is None, "must not be set: the scheduler chooses the node; use `nodeSelector`"),
    "activeDeadlineSeconds": (
        lambda value: value is None,
        "must not be set: it would end the pod in the middle of the training; leave it out",
    ),
    "procMount": (lambda value: value in (None, "Default"), "must be Default: leave it out"),
}
# Said at these places only, elsewhere the keys mean something else.
_FORBIDDEN_THERE: dict[Path, tuple[Callable[[Any], bool], str]] = {
    ("capabilities", "add"): (
        lambda value: not value,
        "must be empty: containers get no capabilities; leave it out",
    ),
    ("seccompProfile", "type"): (_confined, "must not be Unconfined: leave it out"),
    ("appArmorProfile", "type"): (_confined, "must not be Unconfined: leave it out"),
    ("resources", "claims"): (lambda value: not value, "must not be used: ask for `gpus`, which Ray is told"),
}
_APPARMOR_ANNOTATION = "container.apparmor.security.beta.kubernetes.io/"
"""What `appArmorProfile` was before it was a field; Kubernetes still takes it."""
_ACCELERATOR = re.compile(r"gpu|[./](mig-|tpu|npu|neuron|gaudi|ascend)", re.IGNORECASE)
"""Resources that Ray must be told of. Others, such as those of network cards, may be added."""
_LABELLED = ("nodeSelector", "affinity", "topologySpreadConstraints")
"""Below these, keys are labels."""


def faults(template: Manifest, made: Manifest) -> Iterator[PatchRefused]:
    """Everything that is not allowed about what a patch made of a template."""
    yield from _metadata(template, made)
    yield from _taken_away(template, made, ())
    spec = made.get("spec")
    if isinstance(spec, Mapping):
        yield from _forbidden(spec, ("spec",))
        yield from _in_containers(template["spec"], spec)


def _metadata(template: Manifest, made: Manifest) -> Iterator[PatchRefused]:
    for key in made:
        if key not in ("metadata", "spec"):
            yield PatchRefused((key,), "is no part of a pod template: put it below `metadata` or `spec`")
    metadata = made.get("metadata", {})
    for key in metadata:
        if key not in ("labels", "annotations"):
            yield PatchRefused(("metadata", key), "must not be set: only labels and annotations can be; leave it out")
    for kind in ("labels", "annotations"):
        for key, value in metadata.get(kind, {}).items():
            if not isinstance(value, str):
                yield PatchRefused(("metadata", kind, key), "must be a text: put it in quotes")
            if key.startswith(_APPARMOR_ANNOTATION) and value == "unconfined":
                yield PatchRefused(("metadata", kind, key), "must not be unconfined: leave it out")
            if _is_operators_key(key) and key not in template["metadata"][kind]:
                advice = "must not be set: it steers the operator or KubeRay; leave it out"
                yield PatchRefused(("metadata", kind, key), advice)


def _taken_away(template: Mapping[str, Any], made: Mapping[str, Any], path: Path) -> Iterator[PatchRefused]:
    """Parts of the operator's that are gone or changed."""
    for key, value in template.items():
        here = (*path, key)
        if _is_the_users(here):
            continue
        found = made.get(key)
        if found is None:
            yield _changed(here)
        elif isinstance(value, Mapping):
            yield from _taken_away(value, found, here)
        elif key in (keys := list_keys(path)):
            yield from _entries_taken_away(value, found, keys[key], here)
        elif found != value:
            yield _changed(here)


def _entries_taken_away(old: list[Manifest], new: list[Manifest], key: str, path: Path) -> Iterator[PatchRefused]:
    left = entries(new, key, path)
    for here, entry in entries(old, key, path).items():
        if _is_the_users(here):
            continue
        found = left.get(here)
        if found is not None and path[-1] == "containers":
            yield from _taken_away(entry, found, here)
        elif found is not None and here[-1] == _SIDECAR:
            yield from _sidecar_changed(entry, found, here)
        elif found != entry:
            yield _changed(here)


def _sidecar_changed(old: Manifest, new: Manifest, path: Path) -> Iterator[PatchRefused]:
    """The sidecar may get more resources, and more variables, such as those for a proxy."""
    for key in sorted(old.keys() | new.keys()):
        if key == "env":
            yield from _entries_taken_away(old[key], new.get(key, []), "name", (*path, key))
        elif key != "resources" and old.get(key) != new.get(key):
            yield _changed((*path, key))


def _is_the_users(path: Path) -> bool:
    """Whether a part of the template is the run's own, or a choice that a patch may change."""
    match path:
        case ("metadata", "annotations", *_):
            return True
        case ("metadata", "labels", key):
            return not _is_operators_key(key)
        case ("spec", "nodeSelector" | "tolerations" | "affinity" | "priorityClassName", *_):
            return True
        case ("spec", "imagePullSecrets" | "serviceAccountName" | "enableServiceLinks", *_):
            return True
        case ("spec", "securityContext", "runAsUser" | "runAsGroup" | "fsGroup" | "fsGroupChangePolicy"):
            return True  # A platform may give each namespace users of its own.
        case ("spec", container, "imagePullPolicy" | "readinessProbe" | "livenessProbe" | "envFrom") if (
            container in _RAY
        ):
            return True
        case ("spec", entry):
            return entry.startswith(f"volumes[{USER_PREFIX}")
        case ("spec", _, entry) if entry.startswith("env["):
            return not _is_reserved_variable(entry[len("env[") : -1])
        case ("spec", _, entry) if entry.startswith("volumeMounts["):
            return not _is_reserved_mount(entry[len("volumeMounts[") : -1])
    return False


def _changed(path: Path) -> PatchRefused:
    return PatchRefused(path, f"must stay as the operator sets it: {_way_out(path)}")


def _way_out(path: Path) -> str:
    match path:
        case ("spec", container, "image") if container in _RAY:
            return "use `workflow.image`"
        case ("spec", container, "resources", *_) if container in _RAY:
            return "use `cpu`, `memory` and `gpus`"
        case ("spec", "volumes[shared-memory]"):
            return "use `sharedMemory`"
        case ("spec", "terminationGracePeriodSeconds"):
            return "use `deadlines.stopGraceSeconds`"
    return "leave it out"


def _forbidden(value: Any, path: Path) -> Iterator[PatchRefused]:
    """Host access and privileges anywhere below."""
    if isinstance(value, list):
        for place, entry in enumerate(value):
            name = entry.get("name", place) if isinstance(entry, Mapping) else place
            yield from _forbidden(entry, (*path[:-1], f"{path[-1]}[{name}]"))
    if not isinstance(value, Mapping):
        return
    for key, item in value.items():
        here = (*path, key)
        if len(path) == 1 and key in _LABELLED:
            continue
        allowed, advice = _FORBIDDEN_THERE.get(here[-2:]) or _FORBIDDEN.get(key) or (_anything, "")
        if not allowed(item):
            yield PatchRefused(here, advice)
        else:
            yield from _forbidden(item, here)


def _in_containers(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[PatchRefused]:
    """What a container may not have in addition, and what it must have."""
    kept = {volume["name"] for volume in old["volumes"] if not volume["name"].startswith(USER_PREFIX)}
    volumes = kept | {volume["name"] for volume in new.get("volumes") or []}
    for kind in ("containers", "initContainers"):
        before = entries(old.get(kind, []), "name", ("spec", kind))
        for path, container in entries(new.get(kind) or [], "name", ("spec", kind)).items():
            yield from _more_gpus(before.get(path, {}), container, path)
            yield from _mounts_of_nothing(container, volumes, path)
            if path not in before and not container.get("image"):
                yield PatchRefused(path, "must have `image`: say which image this new container runs")
            if path[1] in _RAY and path in before:
                yield from _reserved_additions(before[path], container, path)


def _more_gpus(old: Mapping[str, Any], new: Mapping[str, Any], path: Path) -> Iterator[PatchRefused]:
    resources = new.get("resources")
    for kind, wanted in resources.items() if isinstance(resources, Mapping) else ():
        had = old.get("resources", {}).get(kind, {})
        for name in wanted if isinstance(wanted, Mapping) else ():
            if name not in had and _ACCELERATOR.search(name):
                yield PatchRefused((*path, "resources", kind, name), "must not be added: use `gpus`, which Ray is told")


def _mounts_of_nothing(container: Manifest, volumes: set[str], path: Path) -> Iterator[PatchRefused]:
    """Mounts without their volume, for which the API server would refuse the pod when the run has been accepted."""
    for here, mount in entries(container.get("volumeMounts") or [], "mountPath", (*path, "volumeMounts")).items():
        name = mount.get("name")
        if not isinstance(name, str) or name not in volumes:
            yield PatchRefused(here, "must have the `name` of a volume of the pod: add the volume, or correct the name")


def _reserved_additions(old: Manifest, new: Manifest, path: Path) -> Iterator[PatchRefused]:
    """Variables and mounts like the operator's; its own, if they were changed, have been found already."""
    names = {variable["name"] for variable in old["env"]}
    for here, variable in entries(new.get("env") or [], "name", (*path, "env")).items():
        if _is_reserved_variable(variable["name"]) and variable["name"] not in names:
            yield PatchRefused(here, "is the operator's to set: choose another name")
    places = {mount["mountPath"] for mount in old["volumeMounts"]}
    for here, mount in entries(new.get("volumeMounts") or [], "mountPath", (*path, "volumeMounts")).items():
        if _is_reserved_mount(mount["mountPath"]) and mount["mountPath"] not in places:
            yield PatchRefused(here, "is in, or holds, a folder of the operator's: mount it below /data, say")
    # KubeRay puts a command of the user's before its own, unless that starts Ray.
    command, arguments = (_words(new.get(key)) for key in ("command", "args"))
    if "ray start" in f"{command} {arguments}":
        key = "args" if "ray start" in arguments else "command"
        yield PatchRefused((*path, key), "must not start Ray: KubeRay does, after this; leave that part out")


def _words(value: Any) -> str:
    """What a command would be on one line."""
    return " ".join(" ".join(map(str, value if isinstance(value, list) else [value or ""])).split())


def _is_operators_key(key: str) -> bool:
    return key.startswith((f"{meta.GROUP}/", "ray.io/")) or key in RESERVED_LABELS


def _is_reserved_variable(name: str) -> bool:
    return name in RESERVED_VARIABLES or name.startswith("TUNING_")


def _is_reserved_mount(path: str) -> bool:
    """Whether a mount would be, hide or change a folder of the operator's."""
    place = PurePosixPath(path)
    return ".." in place.parts or any(
        place == folder or folder in place.parents or place in folder.parents
        for folder in map(PurePosixPath, RESERVED_MOUNTS)
    )
