"""Environment variables, mount points and ports that the operator sets and the pods read.

The builders of the operator write these names into manifests; driver, runner and sidecar read them in
their `__main__` only.
"""

ATTEMPT = "TUNING_ATTEMPT"
"""Number of the attempt, from 1: driver, runner and sidecar."""
RUN_DOCUMENT = "TUNING_RUN_DOCUMENT"
"""Path of run.json: driver, runner and sidecar."""
RAY_ADDRESS = "TUNING_RAY_ADDRESS"
"""Base URL of the Ray dashboard: driver."""
RAY_JOB_ID = "TUNING_RAY_JOB_ID"
"""Submission id of the Ray job, one per attempt: driver."""
RAY_TOKEN = "RAY_AUTH_TOKEN"  # noqa: S105 - the name of a variable
"""Token of the Ray cluster, from the Secret that KubeRay makes: driver. The name is Ray's own."""
SIDECAR_ADDRESS = "TUNING_SIDECAR_ADDRESS"
"""Base URL of the sidecar in the head pod: driver."""

STOP_TOKEN_DIGEST = "TUNING_STOP_TOKEN_DIGEST"  # noqa: S105 - the name of a variable
"""Digest of the token that `POST /stop` needs (`stopping`): sidecar. Without it nobody can stop the run that way."""
STOP_GRACE_SECONDS = "TUNING_STOP_GRACE_SECONDS"
"""Seconds that a runner which was asked to stop may take: driver and Ray containers."""
STALL_SECONDS = "TUNING_STALL_SECONDS"
"""Seconds without a new step after which the training counts as stalled: driver. Without it the driver learns them."""

FINAL_EVALUATION_SECONDS = "TUNING_FINAL_EVALUATION_SECONDS"
"""Seconds that the evaluation of the tuned model may take, all sets together: Ray containers. Without it: no limit."""

CONFIG_MOUNT = "/etc/agent-tuning/run"
"""Folder of the run's ConfigMap."""
RUN_DOCUMENT_KEY = "run.json"
RUN_DOCUMENT_PATH = f"{CONFIG_MOUNT}/{RUN_DOCUMENT_KEY}"
VOLUME_MOUNT = "/mnt/agent-tuning"
"""Mount point of the checkpoint volume in head, worker and sidecar containers."""
SOURCE_MOUNT = "/opt/agent-tuning/source"
"""Mount point of `workflow.source`; it is put on PYTHONPATH."""
TEMPLATE_MOUNT = "/etc/agent-tuning/chat-template"
"""Mount point of `model.chatTemplate`."""
DATASETS_MOUNT = "/etc/agent-tuning/datasets"
"""Parent folder of datasets that come from ConfigMaps: one folder for each, `train` or the evaluation's name."""

CLAIMS_MOUNT = "/mnt/claims"
"""Parent folder of claims that hold a model or tasks, read-only: one folder for each, its claim's name."""
HUB_CACHE_MOUNT = "/mnt/huggingface"
"""Mount point of the installation's shared cache of the Hugging Face hub, if it has one."""
HUB_CACHE_FOLDER = f"{VOLUME_MOUNT}/.huggingface"
"""The cache of a run without a shared one: on its own claim, so that a retry does not download again."""
HUB_HOME = "HF_HOME"
"""Where the libraries of the Hugging Face hub keep what they downloaded. The name is theirs."""
HUB_TOKEN_PREFIX = "TUNING_TOKEN_"  # noqa: S105 - the name of a variable
"""Variables with tokens of the hub: this, and MODEL, TRAIN, or EVALUATION_ with the set's place from 0."""
CA_MOUNT = "/etc/agent-tuning/ca"
"""Folder of the installation's bundle of certificate authorities."""
CA_VARIABLES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
"""Variables by which Python, requests and curl find that bundle. The names are theirs."""

DASHBOARD_PORT = 8265
SIDECAR_PORT = 8090
SIDECAR_PORT_NAME = "tuning-metrics"
