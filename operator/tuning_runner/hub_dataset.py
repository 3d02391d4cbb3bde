"""Rows of a dataset on the Hugging Face hub, read with the `datasets` library.

Called by `sources`, which imports this module for such a dataset only: the library takes seconds. It downloads to its
cache below HF_HOME and takes what is there. Not here: commits, tokens and the words of errors (`hub`).
"""

import re
from collections.abc import Iterator
from typing import Any

import datasets
from datasets.exceptions import DatasetNotFoundError, DatasetsError
from huggingface_hub import HfApi

from tuning_contract.causes import Cause
from tuning_contract.run_document import HubSource
from tuning_runner.dataset_formats import DatasetError, require_json
from tuning_runner.episodes.errors import RunError
from tuning_runner.hub import Found, Place, in_plain_words, token_of

_AVAILABLE_SUBSETS = re.compile(r"(?:Available: |available configs: )\[([^]]+)\]")
"""How the library lists the subsets when the one that was asked for is not there."""


def hub_origin(source: HubSource) -> str:
    """Where the rows come from, for messages."""
    return f"{hub_name(source)}, split {source.split}"


def hub_name(source: HubSource) -> str:
    """A dataset's repository and subset, for messages."""
    return f"{source.repo} (subset {source.subset})" if source.subset else source.repo


def hub_rows(source: HubSource, found: Found, place: Place) -> Iterator[dict[str, Any]]:
    """All rows of one split as plain JSON values.

    A row has every column of the split; a value that a file left out is null.

    Raises:
        RunError: DatasetInvalid, says what to change; HubUnreachable.
    """
    try:
        with in_plain_words(source, place):
            table = _table(source, found, place)
    except DatasetNotFoundError as error:
        # The library keeps the hub's own answer for itself.
        with in_plain_words(source, place):
            HfApi(token=token_of(source, place)).auth_check(source.repo, repo_type="dataset")
        raise _unusable(error, source, place) from error
    except (DatasetsError, FileNotFoundError, ImportError, RuntimeError, ValueError) as error:
        raise _unusable(error, source, place) from error
    _refuse_media(table.features, source)
    for number, row in enumerate(table):
        require_json(row, f"row {number} of {hub_origin(source)}")
        yield row


def _table(source: HubSource, found: Found, place: Place) -> Any:
    """The split as the library holds it.

    Raises:
        RunError: for what the library says by other means than an error.
    """
    if source.split is None:
        raise DatasetError(f"`{place.field}.split` is missing: name the split of {source.repo} to read")
    token = token_of(source, place)
    # `hf://`: a folder of that name beside this process is not meant.
    path = f"hf://datasets/{source.repo}"
    builder = datasets.load_dataset_builder(path, source.subset, revision=found.commit, token=token)
    if builder.hash != found.commit:
        # Without the hub the library takes the newest of what it has, whatever was asked for.
        message = f"the hub cannot be reached for dataset {source.repo}, and the cache has another commit of it"
        raise RunError(Cause.HUB_UNREACHABLE, f"{message} than {found.commit}: check that pods may reach the hub")
    builder.download_and_prepare()
    known = list(builder.info.splits)
    if source.split.partition("[")[0] not in known:
        message = f"`{place.field}.split` {source.split} is no split of {hub_name(source)}"
        raise DatasetError(f"{message}; it has: {', '.join(known)}")
    return builder.as_dataset(split=source.split)


def _unusable(error: Exception, source: HubSource, place: Place) -> DatasetError:
    text = " ".join(str(error.__cause__ or error).split())
    if subsets := _AVAILABLE_SUBSETS.search(text):
        problem = (
            f"{source.subset} is no subset of" if source.subset else "is missing, but there are several subsets of"
        )
        return DatasetError(
            f"`{place.field}.subset` {problem} {source.repo}; it has: {subsets[1].replace(chr(39), '')}"
        )
    return DatasetError(f"dataset {hub_name(source)} of the hub cannot be read; check `{place.field}`: {text}")


def _refuse_media(features: Any, source: HubSource) -> None:
    """Refuse columns that the library would decode to objects, each with a package of its own."""
    for name, feature in features.items():
        if kind := next(_decoded(feature), None):
            message = f"the column `{name}` of dataset {hub_name(source)} holds values of type {kind}"
            raise DatasetError(f"{message}, which no JSON object can hold: choose a dataset of texts and numbers")


def _decoded(feature: Any) -> Iterator[str]:
    """Types within a feature that are more than JSON once they are read."""
    if isinstance(feature, dict):
        for part in feature.values():
            yield from _decoded(part)
    elif hasattr(feature, "decode_example"):
        if not isinstance(feature, datasets.Json):
            yield type(feature).__name__
    elif hasattr(feature, "feature"):
        yield from _decoded(feature.feature)
