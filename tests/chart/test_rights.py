"""The chart grants exactly what the operator's code calls, no more and no less."""

from typing import Any

import pytest

from tests.chart.test_chart import only, operator_variables, render
from tuning_operator.cluster.resources import OWN_RIGHTS, RIGHTS

Rights = set[tuple[str, str, str]]


@pytest.mark.parametrize(
    ("options", "kind"), [((), "ClusterRole"), (("watchNamespace=ml", "rbac.aggregate=false"), "Role")]
)
def test_the_role_is_what_the_code_calls(options: tuple[str, ...], kind: str) -> None:
    assert granted(only(render(*options), kind, "-operator")) == wanted(RIGHTS)


@pytest.mark.parametrize("options", [(), ("watchNamespace=ml",), ("watchNamespace=agent-tuning",)])
def test_the_role_beside_the_operator_is_what_the_code_calls_there(options: tuple[str, ...]) -> None:
    objects = render(*options)
    role, binding = only(objects, "Role", "-lease"), only(objects, "RoleBinding", "-lease")
    assert granted(role) == wanted(OWN_RIGHTS)
    assert {item["metadata"]["namespace"] for item in (role, binding)} == {"agent-tuning"}
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    names = {name for rule in role["rules"] for name in rule.get("resourceNames", ())}
    (lease,) = [item["value"] for item in operator_variables(objects) if item["name"] == "LEASE_NAME"]
    assert names == {lease}


def granted(role: dict[str, Any]) -> Rights:
    """Each right of a role."""
    return {
        (group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def wanted(rights: tuple[tuple[str, str, tuple[str, ...]], ...]) -> Rights:
    """Each right of a table."""
    return {(group, resource, verb) for group, resource, verbs in rights for verb in verbs}
