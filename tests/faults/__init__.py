"""Faults between the operator and a real API server, and the players of everybody else for many runs at a time.

`proxy` stands in between and records, `rules` says what goes wrong, `gate` stops the operator's writes at chosen
points so that it can be killed there, `players` are KubeRay, the Job controller, the kubelets and the garbage
collector. Used by `tests/integration/test_operator_under_faults.py` and `test_operator_killed.py`.
"""
