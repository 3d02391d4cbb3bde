"""The command line of the local cluster: `python -m tests.cluster up|down|status|logs|load-image|prepare`.

Called by people, `make` and the demo. Progress goes to standard error, answers to standard output.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.cluster import binaries, packages, paths
from tests.cluster.control_plane import ControlPlane, running_control_planes
from tests.cluster.errors import ClusterError, UnavailableError
from tests.cluster.full import FullCluster, require_machine
from tests.cluster.processes import Processes
from tests.cluster.report import say

OK, FAILED, NOT_RUNNING, UNHEALTHY, UNAVAILABLE = 0, 1, 3, 4, 5
EXIT_CODES = """\
exit codes: 0 done (status: healthy), 1 failed, 2 wrong usage, 3 not running, 4 running but unhealthy,
5 this machine cannot run it (no root, not Linux, a missing tool)

profiles:
  full           one node with kubelet, containerd, DNS, volumes, KubeRay, Prometheus; one per machine; needs root
  control-plane  etcd and kube-apiserver with an audit log and all CRDs; several side by side, told apart by --name
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    chosen = _parser().parse_args(arguments)
    command: Callable[[argparse.Namespace], int] = chosen.command
    try:
        return command(chosen)
    except UnavailableError as error:
        say(f"not possible here: {error}")
        return UNAVAILABLE
    except ClusterError as error:
        say(f"error: {error}")
        return FAILED
    except KeyboardInterrupt:
        say("interrupted; `up` goes on where this ended, `down` cleans up")
        return FAILED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.cluster",
        description="A real Kubernetes on this machine, built from Go modules and started as processes.",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, command: Callable[[argparse.Namespace], int], text: str) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=text, description=text)
        added.set_defaults(command=command)
        added.add_argument("--profile", choices=("full", "control-plane"), default="full", help="default: %(default)s")
        added.add_argument("--name", default="default", help="which control plane (default: %(default)s)")
        return added

    add("prepare", _prepare, "install and build everything that `up` needs; minutes on a fresh machine")
    up = add("up", _up, "start it, or start again what does not run; nothing happens when all is well")
    text = "version of KubeRay, put in place of the one that runs if it is another (default: %(default)s)"
    up.add_argument("--kuberay", choices=binaries.KUBERAY_VERSIONS, default=binaries.KUBERAY_VERSION, help=text)
    down = add("down", _down, "stop it and leave nothing behind but built programs and pulled images")
    down.add_argument("--purge", action="store_true", help="remove the images that the node pulled, too")
    down.add_argument("--keep-registry", action="store_true", help="leave the registry of built images running")
    status = add("status", _status, "say whether it runs, and where to find everything")
    status.add_argument("-o", "--output", choices=("text", "json"), default="text", help="default: %(default)s")
    logs = add("logs", _logs, "show the end of a component's log, or which components have one")
    logs.add_argument("component", nargs="?", help="like kubelet or kube-apiserver")
    logs.add_argument("-n", "--lines", type=int, default=50, help="how many (default: %(default)s)")
    logs.add_argument("-f", "--follow", action="store_true", help="go on as it grows")
    load = add("load-image", _load_image, "import image archives (docker or OCI) into the node of the full cluster")
    load.add_argument("archive", nargs="+", type=Path)
    return parser


def _plane(chosen: argparse.Namespace) -> ControlPlane:
    return ControlPlane(paths.control_plane_state(chosen.name))


def _prepare(chosen: argparse.Namespace) -> int:
    if chosen.profile == "full":
        require_machine()
        FullCluster().build()
    else:
        packages.ensure(packages.CONTROL_PLANE_PACKAGES)
        binaries.go_program(binaries.KUBERNETES)
        for version in binaries.KUBERAY_VERSIONS:
            binaries.kuberay_config(version)
        binaries.clients()
    return OK


def _up(chosen: argparse.Namespace) -> int:
    if chosen.profile == "full":
        FullCluster().up(chosen.kuberay)
    else:
        _plane(chosen).start(chosen.kuberay)
    chosen.output = "text"
    return _status(chosen)


def _down(chosen: argparse.Namespace) -> int:
    if chosen.profile == "full":
        FullCluster().down(purge=chosen.purge, keep_registry=chosen.keep_registry)
    else:
        _plane(chosen).stop()
    return OK


def _status(chosen: argparse.Namespace) -> int:
    cluster = FullCluster()
    if chosen.profile == "full":
        is_started, faults = cluster.state.is_dir(), cluster.faults()
        answer = cluster.describe() if is_started else {"profile": "full"}
    else:
        plane = _plane(chosen)
        is_started = plane.state.is_dir()
        faults = (
            []
            if is_started and plane.is_healthy()
            else ["the API server is not ready" if is_started else "not started"]
        )
        answer = _describe_plane(plane) if is_started else {"profile": "control-plane"}
    answer |= {"healthy": not faults, "faults": faults}
    if chosen.output == "json":
        print(json.dumps(answer, indent=1))
    else:
        _print_text(answer)
    if not is_started:
        return NOT_RUNNING
    return UNHEALTHY if faults else OK


def _describe_plane(plane: ControlPlane) -> dict[str, Any]:
    clients = binaries.clients()
    return {
        "profile": "control-plane",
        "state": str(plane.state),
        "kubeconfig": str(plane.kubeconfig),
        "server": plane.server,
        "kubectl": str(clients / "kubectl"),
        "helm": str(clients / "helm"),
        "prometheus": None,
        "audit_log": str(plane.audit_log),
        "versions": {"kubernetes": binaries.KUBERNETES.version, "kuberay": plane.kuberay_version},
        "all": running_control_planes(plane.state.parent),
    }


def _print_text(answer: dict[str, Any]) -> None:
    for key, value in answer.items():
        if isinstance(value, dict):
            value = ", ".join(f"{name} {version}" for name, version in value.items())
        elif isinstance(value, list):
            value = "; ".join(value) or "none"
        elif isinstance(value, bool):
            value = "yes" if value else "no"
        print(f"{key + ':':12} {value if value is not None else '-'}")
    if answer["healthy"]:
        print(f"\nexport KUBECONFIG={answer['kubeconfig']}")


def _logs(chosen: argparse.Namespace) -> int:
    state = paths.full_state() if chosen.profile == "full" else paths.control_plane_state(chosen.name)
    processes = Processes(state)
    if not state.is_dir():
        say("not started")
        return NOT_RUNNING
    if chosen.component is None:
        print("\n".join(path.stem for path in sorted((state / "log").glob("*.log"))))
        return OK
    log = processes.log(chosen.component)
    if not log.exists():
        say(f"no log of {chosen.component}; without a name this command lists those that there are")
        return FAILED
    return subprocess.call(["tail", f"--lines={chosen.lines}", *(["--follow=name"] if chosen.follow else []), str(log)])


def _load_image(chosen: argparse.Namespace) -> int:
    cluster = FullCluster()
    if cluster.faults():
        say(f"the full cluster is not healthy: {'; '.join(cluster.faults())}")
        return NOT_RUNNING
    for archive in chosen.archive:
        print(cluster.node.load_archive(archive).strip(), file=sys.stdout)
    return OK
