"""Entry point of `python -m tests.cluster`; the commands are in `cli`."""

import sys

from tests.cluster.cli import main

sys.exit(main())
