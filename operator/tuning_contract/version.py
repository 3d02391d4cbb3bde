"""The version of the contract between operator and pods, and the features a runner offers.

The operator writes `requires` into run.json; the runner compares it with FEATURES before anything else,
so that an older image fails with a sentence instead of ignoring a field.
"""

VERSION = "0.3"
"""major.minor. An operator speaks its own minor version and the two before it."""

FEATURES = frozenset(
    {
        "trl",
        "lora",
        "chat_template",
        "evaluation",
        "workflow_source",
        "hub_model",
        "hub_dataset",
        "dataset_split",
        "engine_config",
        "episode_nodes",
        "resume_from",
        "algorithm:rloo",
        "algorithm:reinforceplusplus",
    }
)
"""What this runner can do. A field whose meaning older runners lack adds a name here."""


def missing_features(requires: tuple[str, ...]) -> tuple[str, ...]:
    """The required features that this runner lacks, sorted by name."""
    return tuple(sorted(set(requires) - FEATURES))
