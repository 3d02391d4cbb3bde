"""The values: each is described, a misspelt one is refused, and the operator reads what the chart writes."""

import base64
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.chart import readme
from tests.chart.test_chart import only, operator_variables, render
from tests.harness import CHART
from tuning_operator.api.v1alpha1_execution import DeletionPolicy
from tuning_operator.settings import LOG_FORMATS, LOG_LEVELS, PULL_POLICIES, CaBundle, NodePool, RunDefaults, Settings

SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())
VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
FULL = """
watchNamespace: ml
images: {operator: "registry.example.com/operator:1", runner: "registry.example.com/runner:1", pullPolicy: Always}
log: {level: debug, format: plain}
nodePools:
- name: a100
  nodeSelector: {nvidia.com/gpu.product: NVIDIA-A100-SXM4-80GB, dedicated: "true"}
  tolerations:
  - {key: nvidia.com/gpu, operator: Exists, effect: NoSchedule}
  - {key: team, value: ml, effect: NoExecute, tolerationSeconds: 300}
  maxGPUsPerNode: 8
- {name: slices, resourceName: nvidia.com/mig-3g.40gb, maxGPUsPerNode: 2}
- {name: cpu, maxGPUsPerNode: 0}
defaults:
  storageClassName: fast
  deletionPolicy: Delete
  env:
  - {name: HTTPS_PROXY, value: "http://proxy.example.com:3128"}
  - {name: MOTTO, value: "a < b && 'c' \\"d\\" {{ e }} \\u00fc \\n $(LOG_LEVEL) $$ f"}
  caBundle: {configMap: authorities, key: all.pem}
  huggingFaceCache: {claimName: hub}
  startupPatienceSeconds: 3600
  nodeLostSeconds: 0
replicas: 3
stopKey: {existingSecret: mine}
"""


def installed(*options: str, values: Path | None = None) -> Settings:
    """What the operator reads from the environment that the chart sets."""
    objects = render(*options, values=values)
    return Settings.from_mapping({item["name"]: value_of(item, objects) for item in operator_variables(objects)})


def value_of(variable: Mapping[str, Any], objects: list[dict[str, Any]]) -> str:
    """What a variable is in the pod; of a Secret that the chart does not make, where it comes from."""
    if "value" in variable:
        return as_in_the_pod(variable["value"])
    source = variable["valueFrom"]["secretKeyRef"]
    made = [item for item in objects if item["kind"] == "Secret" and item["metadata"]["name"] == source["name"]]
    return base64.b64decode(made[0]["data"][source["key"]]).decode() if made else "{name}/{key}".format(**source)


def as_in_the_pod(value: str) -> str:
    """What the process sees of a variable's value: the kubelet replaces references and makes one $ of two."""
    return re.sub(r"\$\$|\$\(\w+\)", lambda found: "$" if found[0] == "$$" else "replaced", value)


def described(schema: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every property below a schema with its path, references followed; `[]` is an item of a list."""
    if "$ref" in schema:
        target = SCHEMA["$defs"][schema["$ref"].removeprefix("#/$defs/")]
        yield from described({**target, **{key: schema[key] for key in schema if key != "$ref"}}, path)
        return
    if path:
        yield path, schema
    for key, part in schema.get("properties", {}).items():
        yield from described(part, f"{path}.{key}" if path else key)
    if "items" in schema:
        yield from described(schema["items"], f"{path}[]")


PROPERTIES = dict(described(SCHEMA))
OURS = {path for path in PROPERTIES if "[]" not in path and not path.startswith(("affinity.", "resources."))} - {
    "global"
}
OBJECTS = sorted(path for path, schema in PROPERTIES.items() if "properties" in schema)


def test_what_the_chart_writes_by_default_is_what_the_operator_has_by_default() -> None:
    found = installed()
    assert len(found.stop_key) == 64
    assert replace(found, stop_key="") == Settings(
        operator_image=VALUES["images"]["operator"],
        runner_image=VALUES["images"]["runner"],
        log_format="json",
        lease_namespace="agent-tuning",
        lease_name="release-agent-tuning-operator",
    )


def test_the_operator_reads_every_value_as_it_was_written(tmp_path: Path) -> None:
    (tmp_path / "values.yaml").write_text(FULL)
    assert installed(values=tmp_path / "values.yaml") == Settings(
        operator_image="registry.example.com/operator:1",
        runner_image="registry.example.com/runner:1",
        image_pull_policy="Always",
        watch_namespace="ml",
        log_level="debug",
        log_format="plain",
        node_pools={
            "a100": NodePool(
                name="a100",
                node_selector={"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB", "dedicated": "true"},
                tolerations=(
                    {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},
                    {"key": "team", "value": "ml", "effect": "NoExecute", "tolerationSeconds": 300},
                ),
                max_gpus_per_node=8,
            ),
            "slices": NodePool(name="slices", resource_name="nvidia.com/mig-3g.40gb", max_gpus_per_node=2),
            "cpu": NodePool(name="cpu", max_gpus_per_node=0),
        },
        defaults=RunDefaults(
            storage_class_name="fast",
            deletion_policy=DeletionPolicy.DELETE,
            env={
                "HTTPS_PROXY": "http://proxy.example.com:3128",
                "MOTTO": "a < b && 'c' \"d\" {{ e }} \u00fc \n $(LOG_LEVEL) $$ f",
            },
            ca_bundle=CaBundle("authorities", "all.pem"),
            hub_cache_claim="hub",
        ),
        startup_patience_seconds=3600,
        node_lost_seconds=0,
        stop_key="mine/key",
        lease_namespace="agent-tuning",
        lease_name="release-agent-tuning-operator",
    )


def test_a_value_that_is_taken_away_is_the_operators_default() -> None:
    def without_key(*options: str) -> Settings:
        return replace(installed(*options), stop_key="")

    assert without_key("nodePools=null", "defaults=null", "stopKey=null", "uninstall=null") == without_key()
    assert without_key("defaults.startupPatienceSeconds=null", "defaults.nodeLostSeconds=null") == without_key()
    assert only(render("replicas=null"), "Deployment")["spec"]["replicas"] == VALUES["replicas"]


@pytest.mark.parametrize("path", ["", *OBJECTS])
def test_a_misspelt_value_is_refused_by_its_name_at_every_level(path: str) -> None:
    place = path.replace("[]", "[0]")
    with pytest.raises(ValueError, match="additional properties 'misspelt' not allowed") as caught:
        render(f"{place}.misspelt=x" if place else "misspelt=x")
    assert f"at '{'/' + place.replace('[', '.').replace(']', '').replace('.', '/') if place else ''}'" in str(
        caught.value
    )


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("nodePools[0].name=A_100", "at '/nodePools/0/name': 'A_100' does not match pattern"),
        ("nodePools[0].resourceName=nvidia.com/gpu", "at '/nodePools/0': missing property 'name'"),
        ("nodePools[0].maxGPUsPerNode=-1", "at '/nodePools/0/maxGPUsPerNode': minimum: got -1, want 0"),
        ("nodePools[0].resourceName=gpu", "at '/nodePools/0/resourceName': 'gpu' does not match pattern"),
        ("nodePools[0].nodeSelector.gpu=true", "at '/nodePools/0/nodeSelector/gpu': got boolean, want string"),
        ("nodePools[0].nodeSelector.a b=c", "at '/nodePools/0/nodeSelector': additional properties 'a b' not allowed"),
        ("podLabels.a/b/c=d", "at '/podLabels': additional properties 'a/b/c' not allowed"),
        ("nodePools[0].tolerations[0].effect=No", "at '/nodePools/0/tolerations/0/effect': value must be one of"),
        ("nodePools[0].tolerations[0].value=x", "at '/nodePools/0/tolerations/0': missing property 'key'"),
        (
            "nodePools[0].tolerations[0].tolerationSeconds=9",
            "at '/nodePools/0/tolerations/0': missing property 'effect'",
        ),
        ("defaults.deletionPolicy=Keep", "at '/defaults/deletionPolicy': value must be one of 'Retain', 'Delete'"),
        ("defaults.env[0].name=A", "at '/defaults/env/0': missing property 'value'"),
        ("defaults.env[0].value=1", "at '/defaults/env/0/value': got number, want string"),
        ("defaults.storageClassName=Fast", "at '/defaults/storageClassName': 'Fast' does not match pattern"),
        ("defaults.startupPatienceSeconds=0", "at '/defaults/startupPatienceSeconds': minimum: got 0, want 1"),
        ("defaults.nodeLostSeconds=-1", "at '/defaults/nodeLostSeconds': minimum: got -1, want 0"),
        ("replicas=0", "at '/replicas': minimum: got 0, want 1"),
        ("stopKey.existingSecret=A", "at '/stopKey/existingSecret': 'A' does not match pattern"),
        ("images.operator=", "at '/images/operator': minLength: got 0, want 1"),
        ("images.pullSecrets[0]=", "at '/images/pullSecrets/0': minLength: got 0, want 1"),
    ],
)
def test_a_wrong_value_is_refused_with_its_place(option: str, message: str) -> None:
    with pytest.raises(ValueError, match="values don't meet the specifications of the schema") as caught:
        render(option)
    assert message in str(caught.value)


def test_two_pools_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="nodePools: a100 is there twice: give each pool a name of its own"):
        render("nodePools[0].name=a100", "nodePools[1].name=cpu", "nodePools[2].name=a100")


def test_every_value_is_described_in_the_schema() -> None:
    assert [
        path
        for path, schema in PROPERTIES.items()
        if not path.endswith("[]") and len(schema.get("description", "")) < 8
    ] == []


def test_the_schema_knows_the_values_that_the_chart_has_and_no_others() -> None:
    def keys(values: Mapping[str, Any], path: str = "") -> Iterator[str]:
        for key, value in values.items():
            yield f"{path}{key}"
            if isinstance(value, dict) and f"{path}{key}" not in ("resources", "affinity"):
                yield from keys(value, f"{path}{key}.")

    assert set(keys(VALUES)) == OURS


def test_schema_and_operator_allow_the_same() -> None:
    def allowed(path: str) -> list[str]:
        values: list[str] = PROPERTIES[path]["enum"]
        return values

    assert tuple(allowed("images.pullPolicy")) == PULL_POLICIES
    assert tuple(allowed("log.level")) == LOG_LEVELS
    assert tuple(allowed("log.format")) == LOG_FORMATS
    assert allowed("defaults.deletionPolicy") == list(DeletionPolicy)


def test_the_readme_is_what_values_and_template_make() -> None:
    assert readme.README.read_text() == readme.render(), "run `make generate`"


def test_the_readme_describes_every_value() -> None:
    rows = [line.split(" | ") for line in readme.README.read_text().splitlines() if line.startswith("| `")]
    assert [row[0] for row in rows if len(row[2].strip(" |")) < 20] == []
    names = {row[0].strip("| `") for row in rows}
    parents = {path for path in OURS if any(name.startswith(f"{path}.") for name in names)}
    assert names == OURS - parents
