"""The tiny sample from `kubectl apply` to Succeeded: what people see on the way and what is left."""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from statistics import fmean

import pytest

from tests.e2e.conftest import Installation
from tests.e2e.runs import VOLUME, a_tiny_run, claim_of, cluster_is_gone, in_a_pod, start, the_end, the_run
from tests.harness import CommandError, Object, condition, created, wait_for

pytestmark = pytest.mark.cluster
NAME = "tiny"


@dataclass(frozen=True)
class Finish:
    """A run that has come to its end, and what was seen on the way."""

    run: Object
    wide: str
    """`kubectl get -o wide` during the run."""
    without_token: str
    """What Ray answered to a request without the token."""
    gone_at: float
    """Seconds since 1970 when the RayCluster and its pods were gone."""

    @property
    def steps(self) -> int:
        """Steps of the run."""
        return int(self.run["spec"]["algorithm"]["steps"])


@pytest.fixture(scope="module")
def finish(installation: Installation) -> Finish:
    """Apply the tiny sample and follow it to its end."""
    start(installation, a_tiny_run(installation, NAME))
    running = wait_for("first step", lambda: run_with_a_step(installation), 240)
    wide = installation.cluster.kubectl("get", "trun", NAME, "-o", "wide", "--namespace", installation.namespace)
    without_token = ask_without_token(installation, running)
    run = the_end(installation, NAME)
    return Finish(run, wide, without_token, cluster_is_gone(installation, NAME))


def run_with_a_step(here: Installation) -> Object | None:
    """The run once its status shows a finished step."""
    run = the_run(here, NAME)
    return run if run.get("status", {}).get("progress", {}).get("step", 0) >= 1 else None


def ask_without_token(here: Installation, run: Object) -> str:
    """Ask Ray's job API in the head pod without the token; returns wget's words."""
    selector = f"ray.io/cluster={run['status']['attempt']['rayClusterName']}"
    head = here.cluster.objects("pods", here.namespace, selector)[0]["metadata"]["name"]
    ask = "wget -S -O- -T 5 --tries 1 http://localhost:8265/api/jobs/ 2>&1 || true"
    place = ["exec", head, "--namespace", here.namespace, "-c", "ray-head"]
    return here.cluster.kubectl(*place, "--", "bash", "-c", ask)


def samples(here: Installation, finish: Finish, metric: str) -> list[tuple[float, float]]:
    """All samples of one metric of the run."""
    return here.cluster.samples(f'{metric}{{run="{NAME}",namespace="{here.namespace}"}}', created(finish.run))


def test_it_succeeds_with_every_condition_saying_why(finish: Finish) -> None:
    expected = {"Accepted": "True", "ClusterReady": None, "Started": "True", "Finished": "True", "Succeeded": "True"}
    for kind, status in expected.items():
        found = condition(finish.run, kind)
        assert found.get("reason"), f"{kind} has no reason: {found}"
        assert status is None or found["status"] == status, found
    assert finish.run["status"]["phase"] == "Succeeded"
    assert finish.run["status"]["progress"]["step"] == finish.steps
    assert finish.run["status"]["observedGeneration"] == finish.run["metadata"]["generation"]


def test_the_wide_table_has_no_empty_column_while_it_runs(finish: Finish) -> None:
    header, row = finish.wide.splitlines()[:2]
    starts = [header.index(title) for title in header.split()] + [None]
    cells = {header[a:b].strip(): row[a:b].strip() for a, b in pairwise(starts)}
    empty = {title for title, cell in cells.items() if cell in ("", "<none>", "<unknown>")}
    assert empty == set(), finish.wide
    assert {"STATUS", "STEP", "REWARD", "GPUS", "AGE", "MODEL", "ALGORITHM", "EVAL", "ETA", "REASON"} <= set(cells)


def test_prometheus_has_every_step_of_reward_and_loss(installation: Installation, finish: Finish) -> None:
    for metric in ("tuningrun_reward_mean", "tuningrun_policy_loss"):
        assert len(samples(installation, finish, metric)) == finish.steps, metric
    steps = samples(installation, finish, "tuningrun_step")
    assert sorted({value for _, value in steps if value > 0}) == list(range(1, finish.steps + 1))


def test_the_reward_rises(installation: Installation, finish: Finish) -> None:
    rewards = [value for _, value in samples(installation, finish, "tuningrun_reward_mean")]
    assert fmean(rewards[-5:]) > fmean(rewards[:5]) + 0.1, rewards


def test_cluster_and_pods_are_gone_within_15_seconds_of_the_result(installation: Installation, finish: Finish) -> None:
    folder = f"{VOLUME}/{installation.namespace}/{claim_of(finish.run)}"
    code = f"import pathlib; print(pathlib.Path({folder + '/result.json'!r}).read_text())"
    result = json.loads(in_a_pod(installation, claim_of(finish.run), code))
    assert result["outcome"] == "Succeeded"
    assert finish.gone_at - result["finished_at"] < 15


def test_the_job_is_kept_and_its_log_is_the_training_log(installation: Installation, finish: Finish) -> None:
    job = finish.run["status"]["attempt"]["jobName"]
    log = installation.cluster.kubectl("logs", f"job/{job}", "--namespace", installation.namespace)
    assert f"{finish.steps}/{finish.steps}" in log
    kept = installation.cluster.find("job", job, installation.namespace)
    assert kept is not None
    assert kept["status"]["succeeded"] == 1


def test_the_final_model_is_loaded_by_plain_transformers_in_another_pod(
    installation: Installation, finish: Finish
) -> None:
    folder = f"{VOLUME}/{installation.namespace}/{claim_of(finish.run)}/final"
    code = (
        "import transformers as t\n"
        f"model = t.AutoModelForCausalLM.from_pretrained({folder!r})\n"
        f"tokenizer = t.AutoTokenizer.from_pretrained({folder!r})\n"
        "text = tokenizer.apply_chat_template([{'role': 'user', 'content': 'What is 1 + 2?'}],\n"
        "    tokenize=False, add_generation_prompt=True)\n"
        "ids = tokenizer(text, return_tensors='pt')\n"
        "out = model.generate(**ids, max_new_tokens=4, do_sample=False)\n"
        "print('answer', tokenizer.decode(out[0, ids['input_ids'].shape[1]:], skip_special_tokens=True))\n"
    )
    assert "answer " in in_a_pod(installation, claim_of(finish.run), code)


def test_ray_refuses_a_request_without_the_token(finish: Finish) -> None:
    assert "401" in finish.without_token, finish.without_token


def test_the_status_stays_small(finish: Finish) -> None:
    assert len(json.dumps(finish.run["status"])) < 8192


def test_deleting_a_run_in_mid_run_removes_everything_but_a_retained_claim(installation: Installation) -> None:
    kept = {"deleted-retain": True, "deleted-delete": False}
    for name in kept:
        run = a_tiny_run(installation, name, cluster={"head": {"cpu": "500m", "memory": "4Gi"}})
        policy = name.removeprefix("deleted-").capitalize()
        run["spec"]["checkpoint"] = run["spec"]["checkpoint"] | {"deletionPolicy": policy}
        start(installation, run)
    made = {name: wait_for(f"driver of {name}", partial(job_is_made, installation, name), 120) for name in kept}
    installation.cluster.kubectl("delete", "trun", *kept, "--namespace", installation.namespace)
    for name in kept:
        selector = f"agenttuning.io/run={name}"
        for kind in ("pods", "jobs", "rayclusters", "configmaps"):
            left = partial(installation.cluster.objects, kind, installation.namespace, selector)
            wait_for(f"end of the {kind} of {name}", partial(_none, left), 90)
    time.sleep(2)
    for name, retained in kept.items():
        claim = installation.cluster.find("pvc", claim_of(made[name]), installation.namespace)
        assert (claim is not None) == retained, name


def _none(objects: Callable[[], list[Object]]) -> bool:
    return not objects()


def job_is_made(here: Installation, name: str) -> Object | None:
    """The run once its Job exists."""
    run = the_run(here, name)
    return run if run.get("status", {}).get("attempt", {}).get("jobUID") else None


def test_a_changed_spec_is_refused_with_the_way_out(installation: Installation, finish: Finish) -> None:
    change = ["patch", "trun", NAME, "--namespace", installation.namespace, "--type=merge", "-p", '{"spec":{"seed":7}}']
    with pytest.raises(CommandError, match="immutable"):
        installation.cluster.kubectl(*change)
