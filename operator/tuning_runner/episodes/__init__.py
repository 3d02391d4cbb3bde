"""Episodes: one task -> workflow -> judge -> outcome -> record, given a model session.

Importing this package is cheap (standard library only), because the users' own modules do it for
`EnvironmentFailure`. Engines import the submodules: `runner` (start here), `gateway`, `workers`, `policy`,
`record`, `rows`, `journal`. No training library is imported anywhere below.
"""

from tuning_runner.episodes.contract import EnvironmentFailure, JudgeOutput, WorkflowOutput

__all__ = ["EnvironmentFailure", "JudgeOutput", "WorkflowOutput"]
