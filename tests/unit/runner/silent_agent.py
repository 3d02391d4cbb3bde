"""In place of the dashboard's agent on a node of `local_ray`: a raylet waits 15 s for its port, which nobody uses here.

The real one needs some seconds of CPU to start, and ends its node on a machine that is busy.
"""

import sys
from pathlib import Path

if __name__ == "__main__":
    options = dict(argument.removeprefix("--").split("=", 1) for argument in sys.argv if "=" in argument)
    name = f"dashboard_agent_listen_port_{options['node-id']}"
    unfinished = Path(options["session-dir"], f"{name}.unfinished")
    unfinished.write_text(options["listen-port"])
    unfinished.rename(unfinished.with_name(name))
    sys.stdin.read()  # until the raylet is gone
