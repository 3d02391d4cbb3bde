"""Names of everything that belongs to a run: a pure function of the run's name and UID and the attempt's number.

Used by the builders and by whoever looks children up. A run's name has at most 39 characters (a rule of the API), so
no name here is cut: `<run>-<uid6>-<attempt>` stays below the 50 characters to which KubeRay cuts its Secrets.
"""

from tuning_operator.api.v1alpha1 import TuningRun


def short_uid(run: TuningRun) -> str:
    """The first six hex digits of the run's UID: a run of the same name made later has others."""
    return run.uid.replace("-", "")[:6]


def child(run: TuningRun) -> str:
    """Name of what lasts for the whole run: its ConfigMap, and its claim if one is made."""
    return f"{run.name}-{short_uid(run)}"


def attempt(run: TuningRun, number: int) -> str:
    """Name of the RayCluster and of the Job of one attempt; also the submission id of its Ray job."""
    return f"{child(run)}-{number}"


def claim(run: TuningRun) -> str:
    """Name of the claim with the run's checkpoints: the user's own, or the one that is made."""
    return run.spec.checkpoint.volume.claim_name or child(run)


def head_service(ray_cluster: str) -> str:
    """Name of the Service that KubeRay makes for the head."""
    return f"{ray_cluster}-head-svc"


def token_secret(ray_cluster: str) -> str:
    """Name of the Secret in which KubeRay puts the cluster's token."""
    return ray_cluster


TOKEN_KEY = "auth_token"  # noqa: S105 - the name of a key
"""Key in that Secret."""
