"""The translation of pydantic models into structural schemas."""

import json
import re
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Literal

import pytest
from pydantic import Field

from tuning_operator.api.model import (
    LABEL_VALUE_PATTERN,
    MOUNT_PATH_PATTERN,
    PATH_PATTERN,
    RELATIVE_PATH_PATTERN,
    ApiModel,
    LabelKey,
    LabelValue,
    Quantity,
    Rule,
    exactly_one,
    immutable,
    list_map,
    list_set,
    rule,
)
from tuning_operator.api.schema import SchemaError, structural


class Colour(StrEnum):
    """A choice."""

    RED = "Red"
    BLUE = "Blue"


class Leaf(ApiModel):
    """A leaf."""

    validations: ClassVar[tuple[Rule, ...]] = (rule("self.wide >= 1", "too narrow", "wide"),)

    wide: Annotated[int, Field(ge=1, le=9, examples=[3])] = 2
    """Its width, in
    metres."""
    share: Annotated[float, Field(gt=0, lt=1)] | None = None
    """A share."""


class Tree(ApiModel):
    """A tree."""

    leaf: Leaf = Leaf(wide=7)
    """The leaf of this tree."""
    bare_leaf: Leaf | None = None
    """Maybe another."""
    colour: Colour = Colour.RED
    """Its colour."""
    memory: Quantity = "1Gi"
    """Its memory."""
    names: Annotated[
        tuple[Annotated[str, Field(max_length=3)], ...], Field(max_length=2, json_schema_extra=list_set)
    ] = ()
    """Names."""
    leaves: Annotated[tuple[Leaf, ...], Field(max_length=4, json_schema_extra=list_map("wide"))] = ()
    """Leaves."""
    needed: str
    """Needed."""


def test_a_model_becomes_a_structural_schema_without_references_titles_and_nulls() -> None:
    assert structural(Leaf) == {
        "type": "object",
        "description": "A leaf.",
        "properties": {
            "wide": {
                "type": "integer",
                "minimum": 1,
                "maximum": 9,
                "default": 2,
                "description": "Its width, in metres. Default: 2. Example: 3.",
            },
            "share": {
                "type": "number",
                "minimum": 0,
                "exclusiveMinimum": True,
                "maximum": 1,
                "exclusiveMaximum": True,
                "description": "A share.",
            },
        },
        "x-kubernetes-validations": [{"rule": "self.wide >= 1", "message": "too narrow", "fieldPath": ".wide"}],
    }


def test_an_object_above_a_default_gets_an_empty_default_so_that_the_leaves_decide() -> None:
    properties = structural(Tree)["properties"]
    assert properties["leaf"]["default"] == {}
    assert properties["leaf"]["description"] == "The leaf of this tree."
    assert properties["leaf"]["properties"]["wide"]["default"] == 2
    assert "default" not in properties["bareLeaf"]


def test_lists_enums_and_quantities_are_written_as_kubernetes_wants_them() -> None:
    schema = structural(Tree)
    properties = schema["properties"]
    assert properties["colour"]["enum"] == ["Red", "Blue"]
    assert properties["memory"]["x-kubernetes-int-or-string"] is True
    assert properties["memory"]["default"] == "1Gi"
    assert "type" not in properties["memory"]
    assert (properties["names"]["x-kubernetes-list-type"], properties["names"]["maxItems"]) == ("set", 2)
    assert properties["leaves"]["x-kubernetes-list-map-keys"] == ["wide"]
    assert schema["required"] == ["needed"]


class Labelled(ApiModel):
    """Labelled."""

    labels: Annotated[dict[LabelKey, LabelValue], Field(max_length=2, examples=[{"a": "b"}])] = Field(
        default_factory=dict
    )
    """Labels."""
    plain: dict[str, LabelValue] = Field(default_factory=dict)
    """Values."""


@pytest.mark.parametrize("field", ["labels", "plain"])
def test_a_map_bounds_its_values_and_leaves_its_keys_to_a_rule(field: str) -> None:
    schema = structural(Labelled)["properties"][field]
    assert schema["additionalProperties"] == {"maxLength": 63, "pattern": LABEL_VALUE_PATTERN, "type": "string"}
    assert "patternProperties" not in schema
    assert "propertyNames" not in schema


def test_the_operator_checks_the_keys_of_a_map_too() -> None:
    assert Labelled(labels={"example.com/team": "a"}).labels == {"example.com/team": "a"}
    for key in ("a b", "a/b/c", "", "-a", "x" * 64):
        with pytest.raises(ValueError, match="labels"):
            Labelled(labels={key: "a"})


def test_no_default_is_written_where_the_server_shall_fill_in_none() -> None:
    assert '"default":' not in json.dumps(structural(Tree, defaults=False))


class HoldsAnything(ApiModel):
    """A."""

    anything: Any = None
    """Anything."""


class HoldsAUnion(ApiModel):
    """A."""

    either: int | str = 3
    """A union."""


class HoldsAConstant(ApiModel):
    """A."""

    constant: Literal["x"] = "x"
    """A constant."""


class HoldsAPair(ApiModel):
    """A."""

    pair: tuple[int, int] = (1, 2)
    """A pair."""


@pytest.mark.parametrize(
    ("model", "keyword"),
    [
        (HoldsAnything, "anything: no type"),
        (HoldsAUnion, "either: no structural equivalent of anyOf"),
        (HoldsAConstant, "constant: no structural equivalent of const"),
        (HoldsAPair, "pair: no structural equivalent of prefixItems"),
    ],
)
def test_what_has_no_structural_equivalent_is_refused_with_its_place(model: type[ApiModel], keyword: str) -> None:
    with pytest.raises(SchemaError, match=keyword):
        structural(model)


def test_exactly_one_counts_the_fields_that_are_set() -> None:
    assert exactly_one("a", "b") == {
        "rule": "[has(self.a), has(self.b)].filter(set, set).size() == 1",
        "message": "set exactly one of `a`, `b`",
    }


def test_an_immutable_field_can_be_neither_added_nor_removed() -> None:
    assert immutable(("a",), "make another") == (
        {
            "rule": "has(self.a) == has(oldSelf.a) && (!has(self.a) || self.a == oldSelf.a)",
            "message": "`a` is immutable: make another",
            "fieldPath": ".a",
        },
    )


@pytest.mark.parametrize(
    ("pattern", "good", "bad"),
    [
        (PATH_PATTERN, ["/a", "/a/.cache/b", "/a/..b", "/a b:c/..."], ["/", "a", "/a/", "/a//b", "/a/./b", "/a/../b"]),
        (MOUNT_PATH_PATTERN, ["/a", "/a/.cache"], ["/a:b", "/a/..", "/"]),
        (RELATIVE_PATH_PATTERN, ["a", ".a/b"], ["/a", "a/", "../a", "a/../b", "."]),
    ],
)
def test_a_path_cannot_leave_its_folder(pattern: str, good: list[str], bad: list[str]) -> None:
    assert [path for path in good if not re.search(pattern, path)] == []
    assert [path for path in bad if re.search(pattern, path)] == []
