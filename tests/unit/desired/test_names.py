"""Names: valid, unique per run and attempt, never cut."""

import re

from hypothesis import given
from hypothesis import strategies as st

from tests.builders import a_run
from tuning_operator.desired import names

DNS_1035 = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
RUN_NAMES = st.from_regex(r"[a-z]([-a-z0-9]{0,37}[a-z0-9])?", fullmatch=True)


def test_names_are_made_of_the_run_its_uid_and_the_attempt() -> None:
    run = a_run("math-agent", uid="3f9a1c00-5b1e-4c60-9d6f-2f1f7a2f8a11")
    assert names.child(run) == "math-agent-3f9a1c"
    assert names.attempt(run, 2) == "math-agent-3f9a1c-2"
    assert names.head_service("math-agent-3f9a1c-2") == "math-agent-3f9a1c-2-head-svc"


@given(RUN_NAMES, st.uuids(), st.integers(1, 999))
def test_no_name_is_cut_by_kuberay_or_kubernetes(name: str, uid: object, number: int) -> None:
    run = a_run(name, uid=str(uid))
    cluster = names.attempt(run, number)
    assert DNS_1035.fullmatch(cluster)
    assert len(cluster) <= 50, "KubeRay cuts the names of Secret and head pod to 50 characters"
    assert len(names.head_service(cluster)) <= 63


def test_a_run_of_the_same_name_made_later_has_other_names() -> None:
    assert names.child(a_run(uid="aaaaaa00-0000")) != names.child(a_run(uid="bbbbbb00-0000"))


def test_the_claim_is_the_users_own_or_the_runs() -> None:
    assert names.claim(a_run()) == "math-agent-3f9a1c"
    own = a_run(checkpoint={"volume": {"claimTemplate": None, "claimName": "results"}})
    assert names.claim(own) == "results"
