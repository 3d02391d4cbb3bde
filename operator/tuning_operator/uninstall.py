"""Whether the operator may go: `python -m tuning_operator.uninstall`, which the chart runs before helm removes it.

Without the operator nobody deletes the RayCluster of a run that ends, and its GPUs stay taken. So it is refused while
any is there. Exit codes: 0 none is there, 1 some are, or it cannot be known. Nothing is changed.
"""

import asyncio
import os
import sys

import kopf

from tuning_operator import errors
from tuning_operator.api import meta
from tuning_operator.cluster.client import ApiClient, Selection
from tuning_operator.cluster.credentials import Credentials
from tuning_operator.cluster.resources import RAY_CLUSTERS
from tuning_operator.handlers import connection
from tuning_operator.telemetry import Telemetry

_NAMED = 20
_PAGE = 500
_ADVICE = (
    "Suspend (spec.suspend: true) or delete these runs, or wait for their ends. "
    "To remove the operator all the same: helm uninstall --no-hooks. "
    "To keep it: helm rollback to the revision that helm status shows, for helm now takes it for half removed."
)


def main() -> int:
    """Say what is there; returns the exit code."""
    try:
        held = asyncio.run(_held(os.environ.get("WATCH_NAMESPACE", "")))
    except (errors.ApiError, kopf.LoginError) as error:
        return _refuse(f"cannot see whether RayClusters of runs exist: {error}")
    if held:
        more = f" and {len(held) - _NAMED} more" if len(held) > _NAMED else ""
        return _refuse(f"RayClusters that nobody would free: {', '.join(held[:_NAMED])}{more}")
    return 0


def _refuse(why: str) -> int:
    sys.stderr.write(f"{why}\n{_ADVICE}\n")
    return 1


async def _held(namespace: str) -> list[str]:
    """Namespace and name of every RayCluster of a run."""
    selection = Selection(RAY_CLUSTERS, namespace, labels=meta.RUN_UID_LABEL)
    found: list[str] = []
    token = ""
    async with ApiClient(Credentials(*connection(kopf.OperatorSettings())), Telemetry()) as client:
        while True:
            try:
                page = await client.list_page(selection, _PAGE, token)
            except errors.NotFound:
                # Without KubeRay there is none.
                return found
            found += [f"{item['metadata']['namespace']}/{item['metadata']['name']}" for item in page["items"]]
            token = page["metadata"].get("continue", "")
            if not token:
                return found


if __name__ == "__main__":
    sys.exit(main())
