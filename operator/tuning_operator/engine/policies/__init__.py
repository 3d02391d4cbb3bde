"""The ordered list of policies: the first that is final ends the list.

Each is one file with one function `decide(world, settings)`, which contributes to the plan or has nothing to say.
`plan` walks the list; to add a behaviour, add a file and a line.

No run waits for nothing. Until its attempt trains, `deadlines.startSeconds` ends the wait; one that is rejected is
looked at again every few seconds. A training ends with its driver's word or with its Job, and the driver judges a
standstill; one that is asked to stop has its grace. Between attempts there is a look every minute, and the back-off. A
suspended run waits for its spec alone.
"""

from collections.abc import Callable

from tuning_operator.engine.contribution import Contribution
from tuning_operator.engine.policies import (
    acceptance,
    between,
    children,
    deadlines,
    failure,
    finished,
    leftovers,
    loss,
    patience,
    stopping,
    success,
    suspension,
    training,
    trouble,
)
from tuning_operator.engine.world import World
from tuning_operator.settings import Settings

Policy = Callable[[World, Settings], Contribution | None]

POLICIES: tuple[Policy, ...] = (
    finished.decide,  # an ended run gives its cluster back; nothing else happens to it
    acceptance.decide,  # a run that cannot be executed here waits, and says for what
    success.decide,  # verdict (a): a complete result is success, whatever an exit code says
    leftovers.decide,  # Jobs of attempts that are over come to an end
    between.decide,  # an attempt that is over is cleared away; then the next one begins, or the run rests
    loss.decide,  # verdict (b): the cluster or its head is not the one on which training began
    failure.decide,  # verdict (c, d): the runner's own cause; else what is left of driver and Job
    stopping.decide,  # a training that was asked to stop is waited for, within its grace
    suspension.decide,  # a suspended run makes nothing, and has its training stopped
    deadlines.decide,  # an attempt that does not start is given up; a run whose time is used up is stopped
    patience.decide,  # pods that cannot start: wait, then give up with the container's own reason
    children.decide,  # RayCluster, ConfigMap and claim exist
    training.decide,  # the Job exists as soon as the cluster is ready
    trouble.decide,  # what keeps pods from running is shown
)
