"""A real Kubernetes on this machine, built from Go modules and started as processes, without Docker.

Called by the tests (fixtures in `tests/conftest.py`), by `make cluster-up` and `make demo`
(`python -m tests.cluster`). Two profiles: `control-plane` (`control_plane.ControlPlane`) and `full`
(`full.FullCluster`). Nothing of the product is imported here.
"""
