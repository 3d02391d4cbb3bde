"""Groups: masks, advantages and the verdict over a step, from episode records.

Pure: no I/O, no clock, no training library, and nothing of `tuning_runner.episodes`; any object with the
attributes of `Episode` will do.
"""

from tuning_runner.groups.advantages import Assignment, Episode, assign, failed_ratio, group_reward_stddev, is_scored
from tuning_runner.groups.verdict import StepFailure, step_failure

__all__ = [
    "Assignment",
    "Episode",
    "StepFailure",
    "assign",
    "failed_ratio",
    "group_reward_stddev",
    "is_scored",
    "step_failure",
]
