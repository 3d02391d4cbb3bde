"""The generated parts of docs/concepts/life-cycle.md, and the command that writes them.

    python -m tuning_operator.engine.life_cycle_page            write the parts
    python -m tuning_operator.engine.life_cycle_page --check    print the difference; exit code 1 if there is any

Run by `make generate` and `make verify`. Diagram and tables come from `transitions` and `causes`, which the operator
itself decides by; the words around them are written by hand.
"""

import re
import sys
from collections.abc import Mapping
from pathlib import Path

from tuning_contract.causes import Cause
from tuning_operator.api import generated
from tuning_operator.api.conditions import Phase
from tuning_operator.api.v1alpha1_lifecycle import RetryAction
from tuning_operator.engine.causes import CAUSES, Kind, Patience, Row
from tuning_operator.engine.transitions import TRANSITIONS

PAGE = Path("docs/concepts/life-cycle.md")

DRAWN: tuple[tuple[Phase, Phase], ...] = (
    (Phase.PENDING, Phase.REJECTED),
    (Phase.REJECTED, Phase.STARTING),
    (Phase.PENDING, Phase.STARTING),
    (Phase.STARTING, Phase.RUNNING),
    (Phase.STARTING, Phase.RETRYING),
    (Phase.STARTING, Phase.FAILED),
    (Phase.RUNNING, Phase.SUCCEEDED),
    (Phase.RUNNING, Phase.FAILED),
    (Phase.RUNNING, Phase.RETRYING),
    (Phase.RETRYING, Phase.STARTING),
    (Phase.RUNNING, Phase.SUSPENDING),
    (Phase.SUSPENDING, Phase.SUSPENDED),
    (Phase.SUSPENDED, Phase.STARTING),
)
"""The arrows of the diagram: what happens to most runs. The table below it has all of them."""

MEANINGS: Mapping[Cause, str] = {
    Cause.CONFIG_INVALID: "the spec has what only the runner, or a pod's creation, can find wrong",
    Cause.WORKFLOW_ERROR: "the judge raised, or every episode of the preflight or of a step failed in your code",
    Cause.DATASET_INVALID: "rows that cannot be read, or too few of them",
    Cause.NON_FINITE_LOSS: "a reward or a loss that is no finite number",
    Cause.OUT_OF_MEMORY: "the host's or a GPU's memory was not enough",
    Cause.ENGINE_ERROR: "the engine, or the runner itself, failed",
    Cause.INCOMPLETE_STEPS: "the training ended without an error before its last step, or without its final model",
    Cause.EPISODE_FAILURES: "more episodes than `rollout.maxFailedRatio` allows had no result after all tries",
    Cause.JUDGE_UNAVAILABLE: "the same, since the judge's service did not answer",
    Cause.ENVIRONMENT_UNAVAILABLE: "the same, since what the agent works with did not answer",
    Cause.EVALUATION_FAILED: "an evaluation could not be carried out",
    Cause.STALLED: "no step, evaluation or checkpoint for longer than `deadlines.stallSeconds`",
    Cause.UNKNOWN: "nobody said why; the message has all that is known",
    Cause.START_DEADLINE_EXCEEDED: "the pods were not ready within `deadlines.startSeconds`",
    Cause.DEADLINE_EXCEEDED: "the training has used up `deadlines.activeSeconds`; a checkpoint is saved",
    Cause.UNSCHEDULABLE: "no node takes a pod; the message has the scheduler's words",
    Cause.IMAGE_PULL_FAILED: "an image that cannot be pulled",
    Cause.CONTAINER_CONFIG_ERROR: "a container that cannot be made, such as for want of a Secret",
    Cause.HUB_UNREACHABLE: "the Hugging Face hub did not answer",
    Cause.HEAD_LOST: "the head pod, or its Ray container, ended or was replaced",
    Cause.WORKER_LOST: "a worker pod was lost, and the training did not go on without it",
    Cause.DRIVER_LOST: "the Job's pods ended again and again without a verdict",
    Cause.STORAGE_FAILED: "the claim's volume is full, or cannot be read or written",
    Cause.NODE_LOST: "the node of a pod is dead",
    Cause.EVICTED: "a pod had to leave its node: a drain, pressure on the node, a spot instance",
    Cause.PREEMPTED: "a pod had to make room for one of a higher priority",
}

_ACTORS = {
    Kind.USER: "you",
    Kind.TRAINING: "you, or who runs the services of your agent",
    Kind.LIMIT: "you",
    Kind.INFRASTRUCTURE: "who runs the cluster",
}
_WAITS = {
    Patience.NONE: "-",
    Patience.STARTUP: "five minutes (the installation's `startupPatienceSeconds`)",
    Patience.START_DEADLINE: "`deadlines.startSeconds`",
}


def page(text: str) -> str:
    """The page with its generated parts made anew.

    Raises:
        ValueError: a part's marks are not in the text.
    """
    for name, part in (("phases", _phases()), ("causes", _causes())):
        pattern = re.compile(rf"(<!-- {name}: [^\n]* -->\n).*?(<!-- end of {name} -->)", re.DOTALL)
        begin = pattern.search(text)
        if begin is None:
            raise ValueError(f"{PAGE} has lost the marks around its part `{name}`")
        text = f"{text[: begin.start()]}{begin[1]}\n{part}\n{begin[2]}{text[begin.end() :]}"
    return text


def main(arguments: list[str], root: Path) -> int:
    """Write the parts, or with --check compare them; returns the exit code."""
    return generated.main({PAGE: page((root / PAGE).read_text())}, arguments, root, (__doc__ or "").split("\n")[0])


def _phases() -> str:
    why = {(row.before, row.after): row.why for row in TRANSITIONS}
    # In Mermaid a colon or a semicolon would end the text of an arrow.
    arrows = [f"    {one} --> {other}: {re.sub('[:;]', ',', why[one, other])}" for one, other in DRAWN]
    ends = [f"    {phase} --> [*]" for phase in Phase if phase.terminal]
    diagram = ["```mermaid", "stateDiagram-v2", f"    [*] --> {Phase.PENDING}", *arrows, *ends, "```"]
    rows = [f"| {row.before} | {row.after} | {row.why} |" for row in TRANSITIONS]
    table = [
        "<details><summary>All transitions, the rare ones too</summary>",
        "",
        "| from | to | when |",
        "|---|---|---|",
    ]
    return "\n".join([*diagram, "", *table, *rows, "", "</details>", ""])


def _causes() -> str:
    head = [
        "| cause | means | who acts | default action | counted | waited out | next step |",
        "|---|---|---|---|---|---|---|",
    ]
    return "\n".join([*head, *(_cause(cause, row) for cause, row in CAUSES.items()), ""])


def _cause(cause: Cause, row: Row) -> str:
    counted = "-" if row.action is RetryAction.FAIL else "yes" if row.counted else "no"
    cells = (f"`{cause}`", MEANINGS[cause], _ACTORS[row.kind], row.action, counted, _WAITS[row.patience], row.advice)
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:], Path(__file__).parents[3]))
