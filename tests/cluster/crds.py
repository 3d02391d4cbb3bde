"""Custom resource definitions: KubeRay's out of its module, and every one that the checkout holds.

Called by both profiles after the API server is ready. They are sent as the YAML that they are, so nothing here
depends on a YAML parser.
"""

import re
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

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
    """Apply CRDs; returns their names. Each file holds one.

    Raises:
        ClusterError: The server refused one; with its message.
    """
    # One costs the server seconds: more at once would only bring each nearer to the server's limit for a request.
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(lambda path: _apply(api, path), files))


def are_served(api: Api, names: Sequence[str]) -> bool:
    """Whether all of the CRDs are established and answer requests."""
    return all(_is_served(api, name) for name in names)


def are_published(api: Api, names: Sequence[str]) -> bool:
    """Whether the server's OpenAPI documents show the CRDs as they are now, not as they were before a change."""
    return all(_is_published(api, api.get(f"{COLLECTION}/{name}")) for name in names)


def remove(api: Api, names: Iterable[str]) -> None:
    """Delete CRDs with all their objects."""
    for name in names:
        api.request("DELETE", f"{COLLECTION}/{name}")


def _is_published(api: Api, crd: dict[str, Any]) -> bool:
    group, kind = crd["spec"]["group"], crd["spec"]["names"]["kind"]
    for version in crd["spec"]["versions"]:
        document = api.found(f"/openapi/v3/apis/{group}/{version['name']}") or {}
        named = f".{version['name']}.{kind}"
        schemas = document.get("components", {}).get("schemas", {})
        shown = [schema for name, schema in schemas.items() if name.endswith(named)]
        # Of the specification only: the server adds fields of its own to metadata.
        wanted = _field_paths(version["schema"]["openAPIV3Schema"]["properties"].get("spec", {}))
        if not any(_field_paths(schema["properties"].get("spec", {})) == wanted for schema in shown):
            return False
    return True


def _field_paths(schema: dict[str, Any], path: str = "") -> set[str]:
    """Return the path of every field below a schema."""
    found = set()
    for name, below in schema.get("properties", {}).items():
        found |= {f"{path}.{name}"} | _field_paths(below, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            found |= _field_paths(schema[key], f"{path}[]")
    return found


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
