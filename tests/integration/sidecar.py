"""The sidecar of the present attempt, answering at an address of this machine as its head pod would.

Used by `test_operator_attempts`. It is the real one, with the variables of the pod's manifest and the run.json of the
run's ConfigMap: so the operator's token meets the digest that the operator put into the pod.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from pathlib import Path

from tests.integration.stage import CLUSTERS, CONFIG_MAPS, Stage, attempt_of
from tuning_contract.directory import RunDirectory
from tuning_contract.environment import RUN_DOCUMENT_KEY, SIDECAR_PORT, STOP_TOKEN_DIGEST
from tuning_contract.run_document import RunDocument
from tuning_sidecar.exposition import RunCollector
from tuning_sidecar.series import SeriesMapper
from tuning_sidecar.server import Handler, RunView
from tuning_sidecar.state import RunState
from tuning_sidecar.watcher import Watcher


@contextmanager
def a_sidecar(stage: Stage, volume: Path, address: str) -> Iterator[RunDirectory]:
    """Serve until the end of the block; gives the run's directory on the volume."""
    cluster = stage.child(CLUSTERS)
    spec = cluster["spec"]["headGroupSpec"]["template"]["spec"]["initContainers"][0]
    variables = {entry["name"]: entry["value"] for entry in spec["env"]}
    run = RunDocument.from_text(stage.child(CONFIG_MAPS)["data"][RUN_DOCUMENT_KEY])
    attempt, directory = attempt_of(cluster), RunDirectory(volume / run.checkpoint.directory)
    state = RunState(attempt)
    watcher = Watcher(volume, directory, state)
    collector = RunCollector(state, watcher, SeriesMapper(run, attempt), None)
    view = RunView(attempt, run.digest, directory, state, watcher, collector, variables.get(STOP_TOKEN_DIGEST, ""))
    server = ThreadingHTTPServer((address, SIDECAR_PORT), Handler)
    server.view = view  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield directory
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
