"""provenance.json: what made the final model, for whoever finds it later.

Called by `attempt` after the export. Not here: figures (result.json, metrics.jsonl).
"""

import json
import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

from tuning_contract.checkpoint import describe_files, write_atomically
from tuning_contract.version import VERSION
from tuning_runner.engine import Inputs

_PACKAGES = (
    *("torch", "transformers", "trl", "peft", "accelerate", "tokenizers", "safetensors", "ray", "agentscope"),
    *("datasets", "huggingface_hub", "pyarrow"),
)


def write_provenance(inputs: Inputs, fingerprint: dict[str, Any], final: Path) -> None:
    """Versions, digests and settings, beside result.json."""
    run = inputs.run
    document = {
        "run": {"namespace": run.run.namespace, "name": run.run.name, "uid": run.run.uid, "digest": run.digest},
        "attempt": inputs.attempt,
        "contract": VERSION,
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs",
        "packages": {name: _version(name) for name in _PACKAGES},
        "fingerprint": fingerprint,
        "datasets": {"train": inputs.train.digest}
        | {f"evaluation/{held.settings.name}": held.dataset.digest for held in inputs.held},
        "hub": {name: dict(found) for name, found in inputs.hub.items()},
        "settings": json.loads(run.to_text()),
        "files": describe_files(final),
    }
    write_atomically(inputs.directory.provenance, json.dumps(document, indent=1, sort_keys=True))


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
