"""The finished run whose final model a run starts from, once it has been looked up.

Made by whoever resolves `spec.model.run` (the observation, from the runs it knows), passed to the builders. A builder
itself looks nothing up.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ModelSource:
    """Where the final model of another run lies."""

    run_name: str
    run_uid: str
    """Of that run: with its name it makes the name of the folder on the claim."""
    claim_name: str
    """Claim with that run's checkpoints, in the same namespace."""
