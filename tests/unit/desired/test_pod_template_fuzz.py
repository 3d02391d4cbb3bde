"""Whatever a podTemplatePatch holds: it is told in words, or it leaves the operator's parts as they are."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.builders import some_settings
from tests.unit.desired.patches import with_patch
from tuning_operator.desired import pod_template, pods

KEYS = (
    *("metadata", "labels", "annotations", "spec", "containers", "initContainers", "volumes", "volumeMounts", "env"),
    *("name", "mountPath", "ports", "hostPort", "resources", "limits", "requests", "nvidia.com/gpu", "securityContext"),
    *("privileged", "capabilities", "add", "drop", "runAsUser", "tolerations", "imagePullSecrets", "hostPath"),
    *(
        "restartPolicy",
        "image",
        "command",
        "args",
        "readinessProbe",
        "livenessProbe",
        "nodeSelector",
        "affinity",
        "ray.io/cluster",
        "$patch",
    ),
)
WORDS = (
    "ray-head",
    "tuning-sidecar",
    "run",
    "checkpoints",
    "/mnt/agent-tuning",
    "/data",
    "TUNING_RUN_DOCUMENT",
    "x",
    "",
)

scalars = st.none() | st.booleans() | st.integers(-1, 3) | st.floats(allow_nan=False) | st.sampled_from(WORDS)
anything = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=12,
)
containers = st.lists(
    st.fixed_dictionaries(
        {"name": st.sampled_from(WORDS)},
        optional={
            "env": st.lists(st.fixed_dictionaries({"name": st.sampled_from(WORDS)}, optional={"value": anything})),
            "volumeMounts": st.lists(st.fixed_dictionaries({"mountPath": st.sampled_from(WORDS), "name": anything})),
            "resources": anything,
            "securityContext": anything,
            "image": anything,
            "command": anything,
        },
    ),
    max_size=3,
)
patches = st.dictionaries(st.sampled_from(KEYS), anything, max_size=3) | st.fixed_dictionaries(
    {},
    optional={
        "metadata": anything,
        "spec": st.fixed_dictionaries(
            {},
            optional={
                "containers": containers | anything,
                "initContainers": containers | anything,
                "volumes": anything,
                "securityContext": anything,
                "restartPolicy": anything,
            },
        ),
    },
)
names = st.sampled_from(("ray-head", "tuning-sidecar", "ray-worker", "tools"))
texts = st.dictionaries(
    st.sampled_from(("team", "env", "zone", "privileged", "ray.io/x")), st.sampled_from(("a", "true"))
)
variables = st.fixed_dictionaries(
    {"name": st.sampled_from(("A", "NVIDIA_VISIBLE_DEVICES", "RAY_ADDRESS")), "value": st.just("x")}
)
mounts = st.fixed_dictionaries(
    {"mountPath": st.sampled_from(("/data", "/data/x", "/mnt", "/dev/shm")), "name": st.just("x")}
)
plausible = st.fixed_dictionaries(
    {},
    optional={
        "metadata": st.fixed_dictionaries({}, optional={"labels": texts, "annotations": texts}),
        "spec": st.fixed_dictionaries(
            {},
            optional={
                "nodeSelector": texts | st.none(),
                "schedulerName": st.just("bin-packing"),
                "securityContext": st.fixed_dictionaries({}, optional={"runAsUser": st.sampled_from((None, 0, 5))}),
                "volumes": st.lists(
                    st.fixed_dictionaries({"name": st.sampled_from(("x", "run")), "emptyDir": st.just({})})
                ),
                "containers": st.lists(
                    st.fixed_dictionaries(
                        {"name": names},
                        optional={
                            "env": st.none() | st.lists(variables, max_size=2),
                            "volumeMounts": st.none() | st.lists(mounts, max_size=2),
                            "resources": st.just({"limits": {"cpu": "2"}}),
                        },
                    ),
                    max_size=2,
                ),
                "initContainers": st.lists(
                    st.fixed_dictionaries(
                        {"name": names},
                        optional={
                            "env": st.none() | st.lists(variables, max_size=2),
                            "$patch": st.sampled_from(("replace", "delete")),
                        },
                    )
                ),
            },
        ),
    },
)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(patch=patches | plausible)
def test_a_patch_is_refused_in_words_or_leaves_what_is_ours(patch: Any) -> None:
    run, installation = with_patch(patch), some_settings()
    found = pod_template.problems(run, installation)
    assert all(text.startswith("`spec.cluster.head.podTemplatePatch") for text in found)
    if found:
        return
    plain, made = pods.head(run, installation, 1, None), pod_template.head(run, installation, 1, None)
    ours, theirs = plain["spec"]["containers"][0], made["spec"]["containers"][0]
    for key in ("name", "image", "securityContext", "terminationMessagePolicy"):
        assert theirs[key] == ours[key] | theirs[key] if isinstance(ours[key], dict) else theirs[key] == ours[key]
    assert [item for item in ours["volumeMounts"] if item not in theirs["volumeMounts"]] == []
    sidecar = made["spec"]["initContainers"][0]
    assert sidecar | {"env": [], "resources": {}} == plain["spec"]["initContainers"][0] | {"env": [], "resources": {}}
    assert [item for item in plain["spec"]["volumes"] if item not in made["spec"]["volumes"]] == []
    assert plain["metadata"]["labels"].items() <= made["metadata"]["labels"].items()
    assert made["spec"]["restartPolicy"] == "Never"
