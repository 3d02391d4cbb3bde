"""World -> acceptance: what a run waits for before anything is made."""

from dataclasses import replace
from typing import Any

import pytest

from tests.builders import a_run, some_settings
from tests.unit.engine.acceptances import CLAIMED, SOURCE, TASKS, accepted, rejected
from tests.unit.engine.worlds import (
    NOW,
    OWN_CLAIM,
    STARTING,
    a_claim,
    a_cluster,
    a_new_world,
    a_starting_world,
    seconds,
    some_notes,
)
from tuning_operator.engine.plan import Plan, plan
from tuning_operator.engine.status import unreadable
from tuning_operator.engine.world import Child, Reference, Refusal, RefusalKind
from tuning_operator.settings import NodePool

POOLS = {"a100": NodePool("a100", max_gpus_per_node=8), "cpu": NodePool("cpu", max_gpus_per_node=0)}


def test_an_engine_that_is_not_there_yet_is_not_available() -> None:
    reason, message = rejected(a_new_world(a_run(engine={"type": "Trinity"})))
    assert reason == "NotAvailable"
    assert message == "engine Trinity is not available in this version of the operator: use TRL"


@pytest.mark.parametrize("algorithm", ["ppo", "dpo", "sft"])
def test_an_algorithm_that_is_known_but_not_there_yet_is_not_available(algorithm: str) -> None:
    reason, message = rejected(a_new_world(a_run(algorithm={"type": algorithm})))
    assert reason == "NotAvailable"
    assert message.startswith(f"algorithm {algorithm} is not available on engine TRL")
    assert message.endswith("use multi_step_grpo, rloo, reinforceplusplus")


def test_a_run_without_any_image_is_told_to_name_one() -> None:
    world = a_new_world(a_run(workflow={"image": None}))
    assert rejected(world, some_settings(runner_image=""))[0] == "ImageNotSet"
    assert accepted(world)


def test_without_kuberay_the_run_waits_for_it() -> None:
    assert rejected(a_new_world(kuberay_served=False))[0] == "KubeRayMissing"


def test_an_old_kuberay_is_told_by_the_fields_that_it_lacks() -> None:
    assert rejected(a_new_world(kuberay_lacks=("spec.authOptions", "spec.workerGroupSpecs"))) == (
        "KubeRayTooOld",
        "the installed KubeRay has no `spec.authOptions`, `spec.workerGroupSpecs` in its RayClusters: "
        "install 1.5.1 or later, with its CRDs",
    )


@pytest.mark.parametrize(
    ("cluster", "pools", "reason", "message"),
    [
        pytest.param(
            {"head": {"nodePool": "h100"}},
            POOLS,
            "NodePoolUnknown",
            "`cluster.head.nodePool` is h100, which the installation does not have: use one of a100, cpu",
            id="another name",
        ),
        pytest.param(
            {"workers": [{"name": "agents", "nodePool": "h100"}]},
            {},
            "NodePoolUnknown",
            "`cluster.workers[agents].nodePool` is h100, but the installation has no node pools: leave it out, or let "
            "it be added to `nodePools`",
            id="no pools at all",
        ),
        pytest.param(
            {"head": {"nodePool": "cpu", "gpus": 1}},
            POOLS,
            "NodePoolTooSmall",
            "`cluster.head.gpus` is 1, but a node of pool cpu has at most 0: ask for fewer in one pod, or use another "
            "pool",
            id="too many GPUs",
        ),
    ],
)
def test_a_pool_must_exist_and_have_nodes_that_are_large_enough(
    cluster: dict[str, Any], pools: dict[str, NodePool], reason: str, message: str
) -> None:
    assert rejected(a_new_world(a_run(cluster=cluster)), some_settings(node_pools=pools)) == (reason, message)


def test_a_pool_that_is_large_enough_or_of_unknown_size_is_accepted() -> None:
    run = a_run(cluster={"head": {"nodePool": "a100", "gpus": 1}})
    assert accepted(a_new_world(run), some_settings(node_pools=POOLS))
    assert accepted(a_new_world(run), some_settings(node_pools={"a100": NodePool("a100")}))


def test_an_override_that_the_engine_does_not_take_is_told_before_there_is_a_pod() -> None:
    reason, message = rejected(a_new_world(a_run(engine={"config": {"weight_decai": 0.1}})))
    assert reason == "Invalid"
    assert message.startswith("`engine.config.weight_decai` is not known to engine TRL")
    assert accepted(a_new_world(a_run(engine={"config": {"weight_decay": 0.1}})))


@pytest.mark.parametrize("group", ["head", "workers"])
def test_a_patch_that_takes_the_operators_parts_away_is_told_before_there_is_a_pod(group: str) -> None:
    patched = {"podTemplatePatch": {"spec": {"hostNetwork": True}}}
    cluster: dict[str, Any] = {"head": patched} if group == "head" else {"workers": [{"name": "agents"} | patched]}
    reason, message = rejected(a_new_world(a_run(cluster=cluster)))
    assert reason == "Invalid"
    place = "head" if group == "head" else "workers[agents]"
    assert message.startswith(f"`spec.cluster.{place}.podTemplatePatch.spec.hostNetwork`")


def test_what_the_local_copies_tell_is_looked_at_every_five_seconds() -> None:
    assert plan(a_new_world(kuberay_served=False), some_settings()).due == NOW + seconds(5)


def test_all_that_is_wrong_is_told_at_once() -> None:
    run = a_run(algorithm={"type": "ppo"}, workflow={"image": None}, **CLAIMED)
    reason, message = rejected(a_new_world(run), some_settings(runner_image=""))
    assert reason == "NotAvailable"
    assert [part.partition(" ")[0] for part in message.split("; ")] == ["algorithm", "set", "`checkpoint.volume`"]


def test_a_configmap_that_is_missing_is_told_together_with_all_else() -> None:
    run = a_run(algorithm={"type": "ppo"}, dataset=TASKS["dataset"], **CLAIMED)
    assert plan(a_new_world(run), some_settings()).read == ("tasks",)
    reason, message = rejected(a_new_world(run, notes=some_notes(references=(Reference("tasks", None, NOW),))))
    assert reason == "NotAvailable"
    starts = [part.partition(" ")[0] for part in message.split("; ")]
    assert starts == ["algorithm", "`checkpoint.volume`", "`dataset.train`"]


def test_a_configmap_that_was_there_is_not_read_again_while_another_thing_is_missing() -> None:
    there = some_notes(references=(Reference("tasks", frozenset({"train.jsonl"}), NOW),))
    world = a_new_world(a_run(dataset=TASKS["dataset"], **CLAIMED), notes=there)
    assert plan(replace(world, now=NOW + seconds(3600)), some_settings()).read == ()
    # It may have gone meanwhile, so it is read once more before anything is made.
    healed = replace(world, claims={"results": a_claim()})
    assert plan(replace(healed, now=NOW + seconds(3600)), some_settings()) == Plan(read=("tasks",))
    assert accepted(replace(healed, now=NOW + seconds(60)))


NO_READ = Refusal(RefusalKind.FORBIDDEN, "the operator may not get configmaps: no", NOW)


def test_without_the_right_to_read_it_is_open_whether_the_run_is_accepted() -> None:
    world = a_new_world(a_run(**TASKS), notes=some_notes(refusals={"read": NO_READ}))
    todo = plan(world, some_settings())
    assert (todo.read, todo.create, todo.due) == ((), (), NOW + seconds(60))
    assert todo.status is not None
    assert (todo.status.patch["phase"], todo.status.patch["reason"]) == ("Pending", "Forbidden")
    told = {item["type"]: (item["status"], item["reason"]) for item in todo.status.patch["conditions"]}
    assert (told["Accepted"], told["Degraded"]) == (("Unknown", "Forbidden"), ("True", "Forbidden"))
    assert plan(replace(world, now=NOW + seconds(60)), some_settings()).read == ("tasks",)


@pytest.mark.parametrize("age", [4, 5, 59])
def test_a_right_that_goes_while_a_configmap_is_missing_costs_one_read_a_minute(age: int) -> None:
    missing = (Reference("tasks", None, NOW - seconds(5)),)
    world = a_new_world(a_run(**TASKS), notes=some_notes(references=missing, refusals={"read": NO_READ}))
    todo = plan(replace(world, now=NOW + seconds(age)), some_settings())
    assert todo.read == ()
    assert todo.due is not None
    assert NOW + seconds(age) < todo.due <= NOW + seconds(60)
    assert todo.status is not None
    assert (todo.status.patch["phase"], todo.status.patch["reason"]) == ("Rejected", "ReferenceNotFound")
    told = {item["type"]: (item["status"], item["reason"]) for item in todo.status.patch["conditions"]}
    assert (told["Accepted"], told["Degraded"]) == (("False", "ReferenceNotFound"), ("True", "Forbidden"))
    assert plan(replace(world, now=NOW + seconds(60)), some_settings()).read == ("tasks",)


def test_a_message_that_is_too_long_is_cut_between_problems() -> None:
    volumes = [{"name": f"v{number}", "mountPath": f"/v{number}", "claimName": f"data-{number}"} for number in range(9)]
    write = plan(a_new_world(a_run(cluster={"head": {"volumes": volumes}})), some_settings()).status
    assert write is not None

    def problem(number: int) -> str:
        claim = f"PersistentVolumeClaim data-{number}, which is not in namespace ml: create it"
        return f"`cluster.head.volumes[v{number}]` needs {claim}"

    assert write.patch["message"] == "; ".join([*map(problem, range(4)), "and 5 more"])
    assert write.patch["conditions"][0]["message"] == f"{problem(0)}; and 8 more"
    # One that is too long by itself is cut inside, and the others are counted all the same.
    keys = [Reference("tasks", frozenset(str(n) * 300 for n in range(3)), NOW), Reference("code", None, NOW)]
    run = a_run(dataset=TASKS["dataset"], workflow=SOURCE["workflow"])
    message = rejected(a_new_world(run, notes=some_notes(references=tuple(keys))))[1]
    assert message.startswith("`dataset.train` needs key train.jsonl of ConfigMap tasks, which has 000")
    assert message.endswith("222: add it; and 1 more")
    assert "…" in message
    assert len(message.encode()) <= 640


@pytest.mark.parametrize(
    "lack",
    [
        {"run": a_run(status=STARTING, engine={"type": "Trinity"})},
        {"run": a_run(status=STARTING, **TASKS)},
        {"run": a_run(status=STARTING, **CLAIMED), "claims": {}},
        {"run": a_run(status=STARTING, cluster={"head": {"nodePool": "gone"}})},
        {"kuberay_served": False},
        {"kuberay_lacks": ("spec.authOptions",)},
    ],
)
def test_a_run_with_children_is_accepted_for_good(lack: dict[str, Any]) -> None:
    todo = plan(a_starting_world(**lack), some_settings())
    assert todo.read == ()
    assert todo.status is not None
    assert todo.status.patch.get("phase") != "Rejected"
    assert (todo.status.patch["conditions"][0]["type"], todo.status.patch["conditions"][0]["status"]) == (
        "Accepted",
        "True",
    )


def test_a_child_that_is_not_recorded_yet_makes_the_run_accepted_for_good() -> None:
    assert accepted(a_new_world(cluster=a_cluster(), kuberay_lacks=("spec.authOptions",)))


@pytest.mark.parametrize(
    ("kind", "reason"), [(RefusalKind.INVALID, "Invalid"), (RefusalKind.NAME_CONFLICT, "NameConflict")]
)
def test_a_cluster_that_the_server_refuses_rejects_the_run_with_the_servers_words(
    kind: RefusalKind, reason: str
) -> None:
    refusals = {Child.CLUSTER: Refusal(kind, "spec: no", NOW)}
    todo = plan(a_new_world(notes=some_notes(refusals=refusals)), some_settings())
    assert todo.status is not None
    assert (todo.status.patch["phase"], todo.status.patch["reason"]) == ("Rejected", reason)
    assert todo.status.patch["message"].endswith("spec: no")
    assert todo.due == NOW + seconds(300)
    patch = {"cluster": {"head": {"podTemplatePatch": {"spec": {"hostnam": "x"}}}}}
    patched = plan(a_new_world(a_run(**patch), notes=some_notes(refusals=refusals)), some_settings()).status
    assert patched is not None
    assert ("correct `podTemplatePatch`" in patched.patch["message"]) is (kind is RefusalKind.INVALID)


def test_what_a_rejected_run_waits_for_is_written_at_once_when_it_changes() -> None:
    run = a_run(dataset=TASKS["dataset"], workflow=SOURCE["workflow"])
    nothing = (Reference("tasks", None, NOW), Reference("code", None, NOW))
    first = plan(a_new_world(run, notes=some_notes(references=nothing)), some_settings()).status
    assert first is not None
    one = (Reference("tasks", None, NOW), Reference("code", frozenset(), NOW))
    told = a_run(dataset=TASKS["dataset"], workflow=SOURCE["workflow"], status=first.patch)
    notes = some_notes(references=one, status_written=NOW)
    second = plan(a_new_world(told, notes=notes), some_settings()).status
    assert second is not None
    assert second.patch["message"] == "`dataset.train` needs ConfigMap tasks, which is not in namespace ml: create it"
    again = replace(a_new_world(told, notes=some_notes(references=nothing)), now=NOW + seconds(4))
    assert plan(again, some_settings()).status is None


def test_an_object_that_cannot_be_read_is_told_once() -> None:
    patch = unreadable({}, 3, "spec.algorithm: Field required", NOW)
    assert patch["phase"] == "Rejected"
    assert patch["conditions"][0]["reason"] == "Invalid"
    assert unreadable(patch, 3, "spec.algorithm: Field required", NOW + seconds(60)) == {}


def generations(patch: Any) -> tuple[int | None, set[int | None]]:
    """Of the status, and of its conditions."""
    return patch.get("observedGeneration"), {item.get("observedGeneration") for item in patch["conditions"]}


def test_the_observed_generation_is_that_of_what_was_judged() -> None:
    second = {"generation": 2}
    unread = unreadable({}, 2, "spec.algorithm: Field required", NOW)
    assert generations(unread) == (2, {2})
    rejection = plan(a_new_world(a_run(metadata=second, engine={"type": "Trinity"})), some_settings()).status
    assert rejection is not None
    assert generations(rejection.patch) == (2, {2})
    # What was rejected, or could not be read, at an earlier generation is healed at a later one.
    for before in (rejection.patch, unread):
        run = a_run(metadata={"generation": 3}, status=before)
        healed = a_new_world(
            run, cluster=a_cluster(head_ready=False), claims=OWN_CLAIM, notes=some_notes(config_made=True)
        )
        write = plan(healed, some_settings()).status
        assert write is not None
        assert generations(write.patch) == (3, {3})
    # The verdict on an ended run holds for a spec whose changeable part was changed since.
    over = a_run(metadata={"generation": 4}, status=dict(write.patch) | {"phase": "Succeeded"})
    told = plan(a_starting_world(run=over, cluster=None), some_settings()).status
    assert told is not None
    assert generations(told.patch) == (4, {4})
    assert told.announcements == ()
