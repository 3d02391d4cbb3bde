"""The CRD: complete, documented, bounded, and the same on disk as the models say."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tuning_operator.api import crd, generated
from tuning_operator.api.schema import pattern_of
from tuning_operator.api.v1alpha1_spec import TuningRunSpec

ROOT = Path(__file__).parents[3]
SCHEMA = crd.definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]


def fields(schema: dict[str, Any], where: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every field below a schema with its path; the items of a list are `path[]`."""
    for name, child in schema.get("properties", {}).items():
        yield f"{where}.{name}", child
        yield from fields(child, f"{where}.{name}")
    if "items" in schema:
        yield f"{where}[]", schema["items"]
        yield from fields(schema["items"], f"{where}[]")


SPEC = dict(fields(SCHEMA["properties"]["spec"], "spec"))
FREE_FORM = {"spec.cluster.head.podTemplatePatch", "spec.cluster.workers[].podTemplatePatch"}
STUBS = "spec.engine.config."
"""Begins the paths of the keys that the API owns: no value of theirs is ever stored."""
LEAST_TEXT = 30
"""Characters of a description; what is shorter repeats the field's name."""
STATUS = dict(fields(SCHEMA["properties"]["status"], "status"))


def test_the_generated_files_are_current() -> None:
    assert list(generated.differences(crd.files(), ROOT)) == [], "run `make generate`"


def test_a_stale_file_is_shown_as_a_difference_and_written_anew(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert crd.main([], tmp_path) == 0
    assert crd.main(["--check"], tmp_path) == 0
    (tmp_path / crd.CRD_FILE).write_text("stale\n")
    assert crd.main(["--check"], tmp_path) == 1
    assert "-stale" in capsys.readouterr().out


def test_the_copy_in_the_chart_is_the_crd_with_a_switch_and_kept_on_uninstall() -> None:
    lines = (ROOT / crd.CHART_FILE).read_text().splitlines()
    assert lines[1] == "{{- if .Values.crds.enabled }}"
    assert lines[-1] == "{{- end }}"
    copy = yaml.safe_load("\n".join(lines[2:-1]))
    assert copy["metadata"].pop("annotations") == {"helm.sh/resource-policy": "keep"}
    assert copy == yaml.safe_load((ROOT / crd.CRD_FILE).read_text())


def test_kubectl_can_keep_the_whole_crd_in_its_annotation() -> None:
    """`kubectl apply` writes the object into an annotation, and all annotations together may have 256 KiB."""
    assert len(json.dumps(crd.definition())) < 200 * 1024


def test_helm_finds_nothing_to_execute_in_the_crd() -> None:
    assert "{{" not in (ROOT / crd.CRD_FILE).read_text()


@pytest.mark.parametrize("path", [*SPEC, *STATUS])
def test_every_field_is_described_in_a_sentence_that_says_something(path: str) -> None:
    schema = (SPEC | STATUS)[path]
    if path.endswith("[]") and "description" not in schema:
        assert schema["type"] == "string" or path.startswith(STUBS)
        return
    assert schema["description"][0].isupper() or schema["description"].startswith(("metadata", "module"))
    assert schema["description"].endswith(".")
    assert len(schema["description"]) >= LEAST_TEXT


@pytest.mark.parametrize("path", [path for path in SPEC if not path.endswith("[]")])
def test_every_leaf_of_the_spec_has_an_example(path: str) -> None:
    schema = SPEC[path]
    if "properties" in schema or schema.get("items", {}).get("type") == "object":
        return
    if schema.get("x-kubernetes-preserve-unknown-fields"):
        return
    if schema["description"].startswith("Reserved: "):
        assert path.startswith(STUBS)
        return
    assert "Example: " in schema["description"]


@pytest.mark.parametrize("path", [path for path in SPEC if SPEC[path].get("type", "") != "object"])
def test_a_quantity_and_a_duration_say_their_unit_and_a_default_is_told(path: str) -> None:
    schema = SPEC[path]
    if "default" in schema:
        assert "Default: " in schema["description"]
    if schema.get("x-kubernetes-int-or-string"):
        assert "Kubernetes quantity" in schema["description"]
    if path.lower().endswith("seconds"):
        assert "econds" in schema["description"]


@pytest.mark.parametrize("path", [*SPEC, *STATUS])
def test_every_value_is_bounded(path: str) -> None:
    schema = (SPEC | STATUS)[path]
    if path.startswith(STUBS):
        return
    kind = schema.get("type", "int-or-string")
    bounded = {
        "string": bool({"maxLength", "enum", "format"} & set(schema)),
        "int-or-string": "maxLength" in schema and pattern_of(schema) is not None,
        "array": "maxItems" in schema,
        "integer": "minimum" in schema and ("maximum" in schema or path.startswith("status")),
        "number": "minimum" in schema and "maximum" in schema,
        "boolean": True,
        "object": "properties" in schema or "maxProperties" in schema or path in FREE_FORM,
    }
    assert bounded[kind], schema


def test_only_three_fields_are_free_form() -> None:
    found = {path for path, schema in SPEC.items() if schema.get("x-kubernetes-preserve-unknown-fields")}
    assert {path for path in found if not path.startswith(STUBS)} == FREE_FORM | {"spec.engine.config"}


def test_defaults_sit_on_leaves() -> None:
    for path, schema in SPEC.items():
        assert schema.get("type") != "object" or schema.get("default", {}) == {}, path


def test_the_server_fills_no_default_into_the_status() -> None:
    assert [path for path, schema in STATUS.items() if "default" in schema] == []


def test_every_field_of_the_spec_is_immutable_but_those_that_steer_a_run_that_goes_on() -> None:
    guarded = {
        entry["message"].split("` is immutable")[0].removeprefix("`")
        for entry in TuningRunSpec.validations
        if "oldSelf" in entry["rule"]
    }
    changeable = {"suspend", "deadlines", "cleanup"}
    assert guarded == set(SCHEMA["properties"]["spec"]["properties"]) - changeable


def test_the_printer_columns_are_those_that_people_know() -> None:
    columns = crd.columns()
    assert [column["name"].upper() for column in columns if "priority" not in column] == [
        "STATUS", "STEP", "REWARD", "GPUS", "AGE",
    ]  # fmt: skip
    assert [column["name"].upper() for column in columns if column.get("priority") == 1] == [
        "MODEL", "ALGORITHM", "ATTEMPT", "KL", "EVAL", "ETA", "REASON",
    ]  # fmt: skip


def test_every_printer_column_shows_a_field_of_its_type() -> None:
    for column in crd.columns():
        path = column["jsonPath"].removeprefix(".")
        if path != "metadata.creationTimestamp":
            assert (SPEC | STATUS)[path]["type"] == column["type"], column
