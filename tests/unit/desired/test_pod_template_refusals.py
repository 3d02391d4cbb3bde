"""podTemplatePatch: what is refused, with its place and what to do instead."""

import json
from typing import Any

import pytest

from tests.builders import some_settings
from tests.unit.desired.patches import with_patch
from tuning_operator.desired import pod_template
from tuning_operator.desired.patch import PatchRefused

HEAD = "spec.cluster.head.podTemplatePatch"

STAYS = "must stay as the operator sets it: leave it out"
RAY = {"name": "ray-head"}
MORE = {"name": "x", "image": "tools:1"}
NO_VOLUME = "must have the `name` of a volume of the pod: add the volume, or correct the name"
NO_START = "must not start Ray: KubeRay does, after this; leave that part out"
SIDECAR = {"name": "tuning-sidecar"}
REFUSED: list[tuple[Any, str]] = [
    # The host.
    (
        {"spec": {"volumes": [{"name": "x", "hostPath": {"path": "/"}}]}},
        "spec.volumes[x].hostPath` must not be used: mount a claim, a ConfigMap, a Secret or an emptyDir",
    ),
    (
        {"spec": {"hostNetwork": True}},
        "spec.hostNetwork` must not be true: pods keep to their own network; leave it out",
    ),
    ({"spec": {"hostPID": True}}, "spec.hostPID` must not be true: pods do not see the host's processes; leave it out"),
    ({"spec": {"hostIPC": True}}, "spec.hostIPC` must not be true: pods do not share the host's memory; leave it out"),
    (
        {"spec": {"containers": [RAY | {"ports": [{"name": "a", "containerPort": 1, "hostPort": 1}]}]}},
        "spec.containers[ray-head].ports[a].hostPort` must not be used: reach the pod through a Service; leave it out",
    ),
    (
        {"spec": {"securityContext": {"windowsOptions": {"hostProcess": True}}}},
        "spec.securityContext.windowsOptions.hostProcess` must not be true: pods do not run on the host; leave it out",
    ),
    # Privileges.
    (
        {"spec": {"containers": [MORE | {"securityContext": {"privileged": True}}]}},
        "spec.containers[x].securityContext.privileged` must not be true: leave it out",
    ),
    (
        {"spec": {"initContainers": [MORE | {"securityContext": {"allowPrivilegeEscalation": True}}]}},
        "spec.initContainers[x].securityContext.allowPrivilegeEscalation` must not be true: leave it out",
    ),
    (
        {"spec": {"containers": [MORE | {"securityContext": {"capabilities": {"add": ["SYS_ADMIN"]}}}]}},
        "spec.containers[x].securityContext.capabilities.add` must be empty: containers get no capabilities; "
        "leave it out",
    ),
    (
        {"spec": {"containers": [RAY | {"securityContext": {"runAsNonRoot": False}}]}},
        "spec.containers[ray-head].securityContext.runAsNonRoot` must not be false: use an image with a user other "
        "than root",
    ),
    (
        {"spec": {"securityContext": {"runAsUser": 0}}},
        "spec.securityContext.runAsUser` must not be 0, which is root: use another user",
    ),
    (
        {"spec": {"containers": [MORE | {"securityContext": {"procMount": "Unmasked"}}]}},
        "spec.containers[x].securityContext.procMount` must be Default: leave it out",
    ),
    (
        {"spec": {"containers": [MORE | {"securityContext": {"seccompProfile": {"type": "Unconfined"}}}]}},
        "spec.containers[x].securityContext.seccompProfile.type` must not be Unconfined: leave it out",
    ),
    (
        {"spec": {"securityContext": {"appArmorProfile": {"type": "Unconfined"}}}},
        "spec.securityContext.appArmorProfile.type` must not be Unconfined: leave it out",
    ),
    (
        {"metadata": {"annotations": {"container.apparmor.security.beta.kubernetes.io/ray-head": "unconfined"}}},
        "metadata.annotations.container.apparmor.security.beta.kubernetes.io/ray-head` must not be unconfined: "
        "leave it out",
    ),
    (
        {"spec": {"securityContext": {"sysctls": [{"name": "kernel.shm_rmid_forced", "value": "1"}]}}},
        "spec.securityContext.sysctls` must be empty: pods do not change the kernel; leave it out",
    ),
    # What no field of a pod's life allows, or the pod could not be made with.
    (
        {"spec": {"nodeName": "node-1"}},
        "spec.nodeName` must not be set: the scheduler chooses the node; use `nodeSelector`",
    ),
    (
        {"spec": {"activeDeadlineSeconds": 60}},
        "spec.activeDeadlineSeconds` must not be set: it would end the pod in the middle of the training; leave it out",
    ),
    (
        {"spec": {"containers": [{"name": "x"}]}},
        "spec.containers[x]` must have `image`: say which image this new container runs",
    ),
    (
        {"spec": {"initContainers": [{"name": "x", "image": ""}]}},
        "spec.initContainers[x]` must have `image`: say which image this new container runs",
    ),
    (
        {"spec": {"containers": [RAY | {"volumeMounts": [{"mountPath": "/data", "name": "x"}]}]}},
        f"spec.containers[ray-head].volumeMounts[/data]` {NO_VOLUME}",
    ),
    (
        {"spec": {"containers": [MORE | {"volumeMounts": [{"mountPath": "/data"}]}]}},
        f"spec.containers[x].volumeMounts[/data]` {NO_VOLUME}",
    ),
    # GPUs that Ray would not be told of.
    *(
        (
            {"spec": {"containers": [RAY | {"resources": {"limits": {name: 1}}}]}},
            f"spec.containers[ray-head].resources.limits.{name}` must not be added: use `gpus`, which Ray is told",
        )
        for name in ("nvidia.com/gpu.shared", "nvidia.com/mig-1g.10gb", "gpu.intel.com/i915", "google.com/tpu")
    ),
    (
        {"spec": {"containers": [RAY | {"resources": {"claims": [{"name": "gpu"}]}}]}},
        "spec.containers[ray-head].resources.claims` must not be used: ask for `gpus`, which Ray is told",
    ),
    (
        {"spec": {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "gpu"}]}},
        "spec.resourceClaims` must not be used: ask for `gpus`, which Ray is told",
    ),
    # What is the operator's.
    ({"spec": None}, f"spec` {STAYS}"),
    ({"metadata": None}, f"metadata` {STAYS}"),
    ({"spec": {"containers": None}}, f"spec.containers` {STAYS}"),
    ({"spec": {"initContainers": None}}, f"spec.initContainers` {STAYS}"),
    ({"spec": {"volumes": None}}, f"spec.volumes` {STAYS}"),
    ({"spec": {"restartPolicy": "Always"}}, f"spec.restartPolicy` {STAYS}"),
    (
        {"spec": {"automountServiceAccountToken": True}},
        f"spec.automountServiceAccountToken` {STAYS}",
    ),
    (
        {"spec": {"securityContext": {"runAsNonRoot": None}}},
        f"spec.securityContext.runAsNonRoot` {STAYS}",
    ),
    (
        {"spec": {"containers": [RAY | {"image": "x"}]}},
        "spec.containers[ray-head].image` must stay as the operator sets it: use `workflow.image`",
    ),
    (
        {"spec": {"containers": [RAY | {"resources": {"limits": {"memory": "1Ti"}}}]}},
        "spec.containers[ray-head].resources.limits.memory` must stay as the operator sets it: "
        "use `cpu`, `memory` and `gpus`",
    ),
    (
        {"spec": {"containers": [RAY | {"resources": {"limits": {"nvidia.com/gpu": 4}}}]}},
        "spec.containers[ray-head].resources.limits.nvidia.com/gpu` must not be added: use `gpus`, which Ray is told",
    ),
    (
        {"spec": {"containers": [RAY | {"securityContext": {"capabilities": {"drop": []}}}]}},
        f"spec.containers[ray-head].securityContext.capabilities.drop` {STAYS}",
    ),
    (
        {"spec": {"containers": [RAY | {"terminationMessagePolicy": "File"}]}},
        f"spec.containers[ray-head].terminationMessagePolicy` {STAYS}",
    ),
    (
        {"spec": {"containers": [RAY | {"env": [{"name": "TUNING_RUN_DOCUMENT", "value": "/x"}]}]}},
        f"spec.containers[ray-head].env[TUNING_RUN_DOCUMENT]` {STAYS}",
    ),
    (
        {"spec": {"containers": [RAY | {"env": None}]}},
        f"spec.containers[ray-head].env` {STAYS}",
    ),
    (
        {"spec": {"containers": [RAY | {"env": [{"name": "RAY_ADDRESS", "value": "x"}]}]}},
        "spec.containers[ray-head].env[RAY_ADDRESS]` is the operator's to set: choose another name",
    ),
    (
        {"spec": {"containers": [RAY | {"volumeMounts": [{"mountPath": "/mnt/agent-tuning", "subPath": "x"}]}]}},
        f"spec.containers[ray-head].volumeMounts[/mnt/agent-tuning]` {STAYS}",
    ),
    *(
        (
            {"spec": {"containers": [RAY | {"volumeMounts": [{"mountPath": path, "name": "run"}]}]}},
            f"spec.containers[ray-head].volumeMounts[{path}]` is in, or holds, a folder of the operator's: "
            "mount it below /data, say",
        )
        for path in ("/mnt/agent-tuning/checkpoints", "/mnt", "/mnt/agent-tuning/", "/data/../dev/shm", "/")
    ),
    (
        {"spec": {"volumes": [{"name": "checkpoints", "emptyDir": {}}]}},
        f"spec.volumes[checkpoints]` {STAYS}",
    ),
    (
        {"spec": {"volumes": [{"name": "shared-memory", "emptyDir": {}}]}},
        "spec.volumes[shared-memory]` must stay as the operator sets it: use `sharedMemory`",
    ),
    (
        {"spec": {"initContainers": [SIDECAR | {"image": "x"}]}},
        f"spec.initContainers[tuning-sidecar].image` {STAYS}",
    ),
    (
        {"spec": {"initContainers": [SIDECAR | {"args": ["x"]}]}},
        f"spec.initContainers[tuning-sidecar].args` {STAYS}",
    ),
    (
        {"spec": {"initContainers": [SIDECAR | {"env": [{"name": "TUNING_ATTEMPT", "value": "9"}]}]}},
        f"spec.initContainers[tuning-sidecar].env[TUNING_ATTEMPT]` {STAYS}",
    ),
    (
        {"spec": {"containers": [RAY | {"args": ["ray start --head"]}]}},
        f"spec.containers[ray-head].args` {NO_START}",
    ),
    *(
        ({"spec": {"containers": [RAY | entry]}}, f"spec.containers[ray-head].command` {NO_START}")
        for entry in (
            {"command": ["ray", "start", "--head"]},
            {"command": ["ray"], "args": ["start", "--head"]},
            {"command": ["sh", "-c", "exec ray \t start"]},
        )
    ),
    # Labels by which the operator and KubeRay find the pods.
    (
        {"metadata": {"labels": {"agenttuning.io/run-uid": "x"}}},
        f"metadata.labels.agenttuning.io/run-uid` {STAYS}",
    ),
    (
        {"metadata": {"labels": {"app.kubernetes.io/managed-by": None}}},
        f"metadata.labels.app.kubernetes.io/managed-by` {STAYS}",
    ),
    *(
        (
            {"metadata": {kind: {key: "x"}}},
            f"metadata.{kind}.{key}` must not be set: it steers the operator or KubeRay; leave it out",
        )
        for kind, key in (
            ("labels", "ray.io/identifier"),
            ("labels", "agenttuning.io/other"),
            ("labels", "app.kubernetes.io/created-by"),
            ("annotations", "ray.io/overwrite-container-cmd"),
        )
    ),
    (
        {"metadata": {"name": "x"}},
        "metadata.name` must not be set: only labels and annotations can be; leave it out",
    ),
    # Nonsense.
    ({"kind": "Pod"}, "kind` is no part of a pod template: put it below `metadata` or `spec`"),
    ({"metadata": {"labels": {"team": 3}}}, "metadata.labels.team` must be a text: put it in quotes"),
    ({"metadata": {"labels": "x"}}, "metadata.labels` must be an object, or null to remove it"),
    ({"spec": []}, "spec` must be an object, or null to remove it"),
    ({"spec": {"containers": {"ray-head": {}}}}, "spec.containers` must be a list of objects, or null to remove it"),
    ({"spec": {"containers": ["x"]}}, "spec.containers` must be a list of objects, or null to remove it"),
    (
        {"spec": {"containers": [{"image": "x"}]}},
        "spec.containers` each entry must have `name`, by which it is merged: add it",
    ),
    (
        {"spec": {"containers": [RAY | {"volumeMounts": [{"name": "x"}]}]}},
        "spec.containers[ray-head].volumeMounts` each entry must have `mountPath`, by which it is merged: add it",
    ),
    ({"spec": {"tolerations": "all"}}, "spec.tolerations` must be a list of objects, or null to remove it"),
    ({"spec": {"restartPolicy": {"a": 1}}}, "spec.restartPolicy` must not be an object"),
    ({"spec": {"$patch": "merge"}}, "spec.$patch` must be replace or delete"),
    *(
        ({"spec": {kind: [{"name": name, "$patch": "delete"}]}}, f"spec.{kind}[{name}]` {STAYS}")
        for kind, name in (("containers", "ray-head"), ("initContainers", "tuning-sidecar"), ("volumes", "run"))
    ),
]


@pytest.mark.parametrize(("patch", "sentence"), REFUSED, ids=[json.dumps(patch)[:60] for patch, _ in REFUSED])
def test_a_patch_is_refused_with_its_place_and_what_to_change(patch: Any, sentence: str) -> None:
    run = with_patch(patch)
    assert pod_template.problems(run, some_settings()) == (f"`{HEAD}.{sentence}",)
    with pytest.raises(PatchRefused):
        pod_template.head(run, some_settings(), 1, None)


def test_the_sidecars_variables_cannot_be_removed_together() -> None:
    run = with_patch({"spec": {"initContainers": [SIDECAR | {"env": None}]}})
    places = [text.split("`")[1].rsplit(".", 1)[1] for text in pod_template.problems(run, some_settings())]
    assert places == ["env[TUNING_RUN_DOCUMENT]", "env[TUNING_ATTEMPT]"]


def test_a_head_may_have_a_container_called_like_a_workers() -> None:
    assert (
        pod_template.problems(with_patch({"spec": {"containers": [MORE | {"name": "ray-worker"}]}}), some_settings())
        == ()
    )


def test_a_mount_of_the_runs_own_volume_must_go_with_it() -> None:
    volumes = [{"name": "data", "mountPath": "/data", "claimName": "data"}]
    run = with_patch({"spec": {"volumes": [{"name": "user-data", "$patch": "delete"}]}}, head={"volumes": volumes})
    assert pod_template.problems(run, some_settings()) == (
        f"`{HEAD}.spec.containers[ray-head].volumeMounts[/data]` {NO_VOLUME}",
    )


def test_a_card_of_the_network_may_be_added() -> None:
    limits = {"rdma/ib": 1, "vpc.amazonaws.com/efa": 1, "ephemeral-storage": "10Gi"}
    run = with_patch({"spec": {"containers": [RAY | {"resources": {"limits": limits}}]}})
    assert pod_template.problems(run, some_settings()) == ()
