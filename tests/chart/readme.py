"""The README of the chart, with a table of all values, and the command that writes it.

    python -m tests.chart.readme            write charts/agent-tuning-operator/README.md
    python -m tests.chart.readme --check    print the difference to what is there; exit code 1 if there is one

Run by `make generate` and `make verify`. helm-docs makes it from README.md.gotmpl, Chart.yaml and the comments in
values.yaml. Exit code 5: helm-docs cannot be built here, as in the cluster's own command line.
"""

import argparse
import difflib
import subprocess
import sys
from collections.abc import Sequence

from tests.cluster import binaries
from tests.cluster.cli import UNAVAILABLE
from tests.cluster.errors import ClusterError, UnavailableError
from tests.cluster.report import say
from tests.harness import CHART

README = CHART / "README.md"


def render() -> str:
    """The text that README.md must have.

    Raises:
        UnavailableError: helm-docs cannot be built on this machine.
        ClusterError: helm-docs failed.
    """
    program = binaries.go_program(binaries.HELM_DOCS) / binaries.HELM_DOCS.name
    # A dry run prints what it would write; of its log only warnings are of interest, and each is a mistake.
    options = ["--dry-run", "--log-level", "warning", "--sort-values-order", "file"]
    done = subprocess.run(
        [str(program), *options, "--chart-search-root", str(CHART)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if done.returncode != 0 or done.stderr or not done.stdout:
        raise ClusterError(f"helm-docs ended with {done.returncode}: {done.stderr.strip() or 'it printed nothing'}")
    return done.stdout.rstrip() + "\n"


def main(arguments: Sequence[str]) -> int:
    """Write, or with --check compare; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.chart.readme", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--check", action="store_true", help="change nothing; print the difference")
    check = parser.parse_args(arguments).check
    try:
        text = render()
    except UnavailableError as error:
        say(f"the chart's README: not possible here: {error}")
        return UNAVAILABLE
    except ClusterError as error:
        say(f"error: {error}")
        return 1
    if not check:
        README.write_text(text)
        return 0
    found = _difference(README.read_text() if README.exists() else "", text)
    sys.stdout.writelines(found)
    return 1 if found else 0


def _difference(current: str, wanted: str) -> list[str]:
    lines = [text.splitlines(keepends=True) for text in (current, wanted)]
    return list(difflib.unified_diff(*lines, README.name, f"{README.name} (generated)"))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
