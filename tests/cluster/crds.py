"""Custom resource definitions: KubeRay's out of its module, and every one that the checkout holds.

Called by both profiles after the API server is ready. They are sent as the YAML that they are, so nothing here
depends on a YAML parser.
"""

import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.cluster.api import Api, ApiError
from tests.cluster.errors import ClusterError
from tests.cluster.paths import CHECKOUT

COLLECTION = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


def ours() -> list[Path]:
    """Return the CRD files of the checkout (`crds/*.yaml`); none before they are generated."""
    return sorted(path for path in (CHECKOUT / "crds").glob("*.yaml") if _kind(path) == "CustomResourceDefinition")


def kuberay(config: Path) -> list[Path]:
    """Return KubeRay's CRD files in its `config` folder."""
    return sorted((config / "crd" / "bases").glob("*.yaml"))


def apply(api: Api, files: Sequence[Path]) -> list[str]:
    """Apply CRDs side by side; returns their names. Each file holds one.

    Raises:
        ClusterError: The server refused one; with its message.
    """
    with ThreadPoolExecutor(4) as pool:
        return list(pool.map(lambda path: _apply(api, path), files))


def are_served(api: Api, names: Sequence[str]) -> bool:
    """Whether all of the CRDs are established and answer requests."""
    return all(_is_served(api, name) for name in names)


def _apply(api: Api, path: Path) -> str:
    text = path.read_text()
    name = _field(text, r"^  name: (\S+)$", path)
    try:
        api.apply(f"{COLLECTION}/{name}", text)
    except ApiError as error:
        raise ClusterError(f"the API server refused {path.name}: {error}") from error
    return name


def _is_served(api: Api, name: str) -> bool:
    found = api.found(f"{COLLECTION}/{name}")
    if not found:
        return False
    conditions = (found.get("status") or {}).get("conditions") or []
    if not any(c["type"] == "Established" and c["status"] == "True" for c in conditions):
        return False
    plural, _, group = name.partition(".")
    versions = [version["name"] for version in found["spec"]["versions"] if version["served"]]
    return all(api.found(f"/apis/{group}/{version}/{plural}?limit=1") is not None for version in versions)


def _kind(path: Path) -> str:
    match = re.search(r"^kind: (\S+)$", path.read_text(), re.MULTILINE)
    return match.group(1) if match else ""


def _field(text: str, pattern: str, path: Path) -> str:
    match = re.search(pattern, text, re.MULTILINE)
    if not match:
        raise ClusterError(f"{path} does not look like a CRD: nothing matches {pattern}")
    return match.group(1)
