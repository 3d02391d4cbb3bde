"""The chart grants exactly what the operator's code calls, no more and no less."""

from typing import Any

import pytest

from tests.chart.test_chart import only, render
from tuning_operator.cluster.resources import RIGHTS

WANTED = {(group, resource, verb) for group, resource, verbs in RIGHTS for verb in verbs}


@pytest.mark.parametrize(
    ("options", "kind"), [((), "ClusterRole"), (("watchNamespace=ml", "rbac.aggregate=false"), "Role")]
)
def test_the_role_is_what_the_code_calls(options: tuple[str, ...], kind: str) -> None:
    rules: list[dict[str, Any]] = only(render(*options), kind, "operator")["rules"]
    granted = {
        (group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert granted == WANTED
