"""`python -m tuning_sidecar`: the native sidecar of a run's Ray head pod.

Wires watcher, remote-writer and server together. The kubelet stops it after the Ray container, so on SIGTERM
the files are final: it reads and pushes what is left, lets the driver get a result that it has not seen yet, and goes
within seconds.
"""

import argparse
import os
import signal
import sys
import threading
import time
from pathlib import Path

from tuning_contract import environment
from tuning_contract.directory import RunDirectory
from tuning_contract.run_document import RunDocument
from tuning_sidecar.exposition import RunCollector
from tuning_sidecar.remote_write import RemoteWriter
from tuning_sidecar.remote_write_client import RemoteWriteClient
from tuning_sidecar.series import SeriesMapper
from tuning_sidecar.server import RunView, SidecarServer
from tuning_sidecar.state import RunState
from tuning_sidecar.watcher import Watcher

DRAIN_SECONDS = 5.0
RESULT_SECONDS = 3.0
"""For the driver, which asks once a second, to get a result that was written a moment before SIGTERM."""
LAST_LINES_SECONDS = 0.5
"""And then the end of the log."""


def main(arguments: list[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tuning_sidecar", description=__doc__)
    parser.add_argument("--volume", type=Path, default=Path(environment.VOLUME_MOUNT), help="root of the volume")
    parser.add_argument("--port", type=int, default=environment.SIDECAR_PORT)
    options = parser.parse_args(arguments)
    attempt = int(os.environ[environment.ATTEMPT])
    path = os.environ.get(environment.RUN_DOCUMENT, environment.RUN_DOCUMENT_PATH)
    run = RunDocument.from_text(Path(path).read_text(encoding="utf-8"))
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    return _serve(run, attempt, options.volume, options.port, stop)


def _serve(run: RunDocument, attempt: int, volume: Path, port: int, stop: threading.Event) -> int:
    directory = RunDirectory(volume / run.checkpoint.directory)
    state = RunState(attempt)
    watcher = Watcher(volume, directory, state)
    threads = [threading.Thread(target=watcher.run, args=(stop,), name="watcher", daemon=True)]
    writer = _writer(run, attempt, directory)
    if writer is not None:
        threads.append(threading.Thread(target=writer.run, args=(stop,), name="remote-write", daemon=True))
    collector = RunCollector(state, watcher, SeriesMapper(run, attempt), writer.statistics if writer else None)
    stop_digest = os.environ.get(environment.STOP_TOKEN_DIGEST, "")
    view = RunView(attempt, run.digest, directory, state, watcher, collector, stop_digest)
    server = SidecarServer(port, view)
    threading.Thread(target=server.serve_forever, name="http", daemon=True).start()
    for thread in threads:
        thread.start()
    sys.stderr.write(f"sidecar: serving {directory.root} of attempt {attempt} on port {server.server_port}\n")
    stop.wait()
    for thread in threads:
        thread.join(DRAIN_SECONDS)
    if view.has_unread_result() and view.result_read.wait(RESULT_SECONDS):
        time.sleep(LAST_LINES_SECONDS)
    server.shutdown()
    server.server_close()
    sys.stderr.write("sidecar: drained\n")
    return 0


def _writer(run: RunDocument, attempt: int, directory: RunDirectory) -> RemoteWriter | None:
    if run.metrics.remote_write is None:
        return None
    client = RemoteWriteClient(run.metrics.remote_write.url)
    return RemoteWriter(client, directory.metrics, directory.remote_write_mark, SeriesMapper(run, attempt))


if __name__ == "__main__":
    sys.exit(main())
