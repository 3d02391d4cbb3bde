"""Base models from the Hugging Face hub, and what every use of the hub needs: commits, tokens, errors in plain words.

Called by `sources`, which imports this module only for a run that has a source on the hub: the hub's client reads its
variables when it is imported. Files go to the client's cache (HF_HOME), where the next attempt finds them. Not here:
rows (`hub_dataset`).
"""

import contextlib
import errno
import glob
import json
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal

from huggingface_hub import HfApi, constants, errors, get_cached_repo_tree, snapshot_download, try_to_load_from_cache
from huggingface_hub.file_download import repo_folder_name
from huggingface_hub.hf_api import RepoFile
from huggingface_hub.utils import httpx  # type: ignore[attr-defined]  # the HTTP library that this client uses

from tuning_contract.causes import Cause
from tuning_contract.checkpoint import write_atomically
from tuning_contract.run_document import HubSource
from tuning_runner.episodes.errors import RunError

Say = Callable[[str], None]

_SETTINGS_FILES = re.compile(r"[^/]+\.(json|jinja|txt|model|tiktoken)|additional_chat_templates/[^/]+\.jinja")
"""Configuration and tokenizer."""
_WEIGHTS = (
    re.compile(r"model(-\d+-of-\d+)?\.safetensors"),
    re.compile(r"[^/]+\.safetensors"),
    re.compile(r"pytorch_model(-\d+-of-\d+)?\.bin"),
)
"""The weights that transformers reads, best first: the others are the same in another form."""
_SECONDS_BETWEEN_LINES = 5.0
_STORAGE_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)
_BUSY = (408, 429)
"""Statuses below 500 after which the same request may succeed."""


@dataclass(frozen=True)
class Place:
    """What a repository is for."""

    name: str
    """Key in sources.json and provenance.json."""
    field: str
    """The spec's field, for messages."""
    kind: Literal["model", "dataset"]

    @property
    def invalid(self) -> Cause:
        """The cause of a source that the user must change."""
        return Cause.CONFIG_INVALID if self.kind == "model" else Cause.DATASET_INVALID


MODEL = Place("model", "model.huggingFace", "model")


@dataclass(frozen=True)
class Found:
    """A repository at the commit that its revision named when the run began."""

    repo: str
    revision: str
    commit: str

    @property
    def identity(self) -> str:
        """Names the content for good."""
        return f"{self.repo}@{self.commit}"


def token_of(source: HubSource, place: Place, environment: Mapping[str, str] = os.environ) -> str | None:
    """The token of a source; None leaves it to the client, which knows HF_TOKEN.

    Raises:
        RunError: when the variable is not set or empty.
    """
    if source.token_variable is None:
        return None
    token = environment.get(source.token_variable, "").strip()
    if not token:
        message = f"the Secret's key that `{place.field}.tokenSecretRef` names is empty: put the token of the hub there"
        raise RunError(place.invalid, message)
    return token


class Commits:
    """Which commit each source of this run has: looked up once, by the first attempt.

    Otherwise a push to the repository between two attempts would change what is trained.

    Args:
        file: sources.json of the run.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._known: dict[str, Found] = {}
        with contextlib.suppress(OSError, ValueError, TypeError, AttributeError):
            document = json.loads(file.read_text(encoding="utf-8"))
            self._known = {name: Found(**entry) for name, entry in document.items()}

    def find(self, source: HubSource, place: Place) -> Found:
        """The commit that an earlier attempt found, or the one that the hub or its cache names now.

        Raises:
            RunError: says what to change, or HubUnreachable.
        """
        found = self._noted(source, place) or self._asked(source, place)
        if self._known.get(place.name) != found:
            self._known[place.name] = found
            document = {name: asdict(entry) for name, entry in self._known.items()}
            write_atomically(self._file, json.dumps(document, indent=1, sort_keys=True))
        return found

    def _noted(self, source: HubSource, place: Place) -> Found | None:
        """What is known for this place or another one of its kind: a training and a test split belong together."""
        for name, found in self._known.items():
            same = (found.repo, found.revision) == (source.repo, source.revision)
            if same and (name == MODEL.name) == (place.kind == MODEL.kind):
                return found
        return None

    def _asked(self, source: HubSource, place: Place) -> Found:
        with in_plain_words(source, place):
            api = HfApi(token=token_of(source, place))
            resolved = api.resolve_revision(source.repo, repo_type=place.kind, revision=source.revision)
        return Found(source.repo, source.revision, resolved.resolved)


def fetch_model(source: HubSource, found: Found, say: Say) -> Path:
    """The folder of a model in the cache, after what is missing there was downloaded.

    Args:
        source: the repository.
        found: its commit.
        say: gets a line before, every few seconds, and after.

    Raises:
        RunError: ConfigInvalid, says what to change; HubUnreachable; StorageFailed without room for the files.
    """
    token = token_of(source, MODEL)
    with in_plain_words(source, MODEL):
        sizes = _sizes(source, found, token)
        names = _needed(source, list(sizes))
        missing = sum(sizes[name] for name in names if not _is_cached(found, name))
        cache = Path(constants.HF_HUB_CACHE)
        label = f"model {found.repo} at {found.commit[:12]}"
        if missing:
            _require_room(cache, missing, label)
        folder = cache / repo_folder_name(repo_id=found.repo, repo_type="model")
        with _Progress(folder, missing, say, f"{label}: {len(names)} files"):
            patterns = [glob.escape(name) for name in names]
            return Path(snapshot_download(found.repo, revision=found.commit, allow_patterns=patterns, token=token))


def _is_cached(found: Found, name: str) -> bool:
    return isinstance(try_to_load_from_cache(found.repo, name, revision=found.commit), str)


def _sizes(source: HubSource, found: Found, token: str | None) -> dict[str, int]:
    """Bytes of every file of the repository, from the cache if it has the list."""
    try:
        files = get_cached_repo_tree(source.repo, revision=found.commit)
    except errors.CachedRepoTreeNotFoundError:
        entries = HfApi(token=token).list_repo_tree(source.repo, revision=found.commit, recursive=True)
        files = [entry for entry in entries if isinstance(entry, RepoFile)]
    return {file.path: file.size for file in files}


def _needed(source: HubSource, names: Sequence[str]) -> list[str]:
    """The files that transformers reads."""
    if "config.json" not in names:
        listing = ", ".join(sorted(names)[:10])
        message = (
            f"`{MODEL.field}.repo` {source.repo} has no config.json, so it is no model of transformers ({listing})"
        )
        raise RunError(Cause.CONFIG_INVALID, message)
    for pattern in _WEIGHTS:
        if weights := [name for name in names if pattern.fullmatch(name)]:
            return [name for name in names if _SETTINGS_FILES.fullmatch(name)] + weights
    message = f"`{MODEL.field}.repo` {source.repo} has no weights in .safetensors or .bin files"
    raise RunError(Cause.CONFIG_INVALID, f"{message}: name the repository of the original model")


def _require_room(cache: Path, needed: int, label: str) -> None:
    cache.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(cache).free
    if free < needed:
        message = (
            f"the cache of the hub in {cache} has {free >> 20} MiB left, but {label} needs {needed >> 20} MiB more"
        )
        raise RunError(Cause.STORAGE_FAILED, f"{message}: enlarge its volume")


class _Progress:
    """Tells how far a download is, by what lies in the cache."""

    def __init__(self, folder: Path, missing: int, say: Say, label: str) -> None:
        self._folder = folder
        self._missing = missing
        self._say = say
        self._label = label
        self._done = threading.Event()
        self._teller = threading.Thread(target=self._tell, name="download", daemon=True)

    def __enter__(self) -> None:
        self._started = time.monotonic()
        if not self._missing:
            self._say(f"{self._label}, all in the cache")
            return
        self._say(f"{self._label}, downloading {_mebibytes(self._missing)} MiB")
        self._before = _stored(self._folder)
        self._teller.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._missing:
            return
        self._done.set()
        self._teller.join()
        if error is None:
            seconds = time.monotonic() - self._started
            self._say(f"{self._label}, {_mebibytes(self._missing)} MiB downloaded in {seconds:.1f} s")

    def _tell(self) -> None:
        while not self._done.wait(_SECONDS_BETWEEN_LINES):
            stored = min(_stored(self._folder) - self._before, self._missing)
            self._say(f"{self._label}, {_mebibytes(stored)} of {_mebibytes(self._missing)} MiB")


def _stored(folder: Path) -> int:
    """Bytes on disk below a folder: a file that is being downloaded may have its full length from the start."""
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):  # renamed when it was complete
            total += path.lstat().st_blocks * 512
    return total


def _mebibytes(count: int) -> str:
    return f"{count / (1 << 20):,.1f}"


@contextlib.contextmanager
def in_plain_words(source: HubSource, place: Place) -> Iterator[None]:
    """Turn the errors of the hub's clients into a RunError that says what to change, or HubUnreachable.

    Errors of the volume pass, and so does what this does not know.
    """
    try:
        yield
    except RunError:
        raise
    except Exception as error:
        for each in _chain(error):
            if isinstance(each, OSError) and each.errno in _STORAGE_ERRORS:
                raise each from error
            if message := _refusal(each, source, place):
                raise RunError(place.invalid, message) from error
        for each in _chain(error):
            if _is_unreachable(each):
                raise RunError(Cause.HUB_UNREACHABLE, _unreachable(each, source)) from error
        raise


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """An exception and what led to it."""
    while error is not None:
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _refusal(error: BaseException, source: HubSource, place: Place) -> str:
    """What the user must change; empty when the hub did not refuse."""
    repo, field, token = source.repo, place.field, source.token_variable is not None
    if isinstance(error, errors.GatedRepoError):
        advice = "ask for access on its page, with the account of" if token else "accept its terms on its page, and set"
        return f"{place.kind} {repo} of the hub is gated: {advice} `{field}.tokenSecretRef`"
    if isinstance(error, errors.RevisionNotFoundError):
        return f"`{field}.revision` {source.revision} is no branch, tag or commit of {repo}"
    if isinstance(error, errors.RepositoryNotFoundError):
        whom = f"the token of `{field}.tokenSecretRef`" if token else "a reader without a token"
        advice = f"check `{field}.repo`, and `{field}.tokenSecretRef` if it is private"
        return f"the hub shows {whom} no {place.kind} {repo}: {advice}"
    if isinstance(error, errors.HFValidationError):
        return f"`{field}.repo` {repo} is no name of a repository, such as owner/name"
    if isinstance(error, errors.HfHubHTTPError) and error.response.status_code in (401, 403):
        return f"the hub refuses the token for {place.kind} {repo}: check the Secret of `{field}.tokenSecretRef`"
    return ""


def _is_unreachable(error: BaseException) -> bool:
    if isinstance(error, errors.HfHubHTTPError):
        return error.response.status_code >= 500 or error.response.status_code in _BUSY
    kinds = (
        httpx.RequestError,
        errors.LocalEntryNotFoundError,
        errors.RevisionResolutionError,
        errors.FileMetadataError,
        ConnectionError,
        TimeoutError,
    )
    return isinstance(error, kinds)


def _unreachable(error: BaseException, source: HubSource) -> str:
    reason = " ".join(str(error).split())[:500] or type(error).__name__
    advice = "check that pods may reach it, and the proxy and certificates of the installation"
    return (
        f"the hub {constants.ENDPOINT} cannot be reached for {source.repo}, and the cache lacks it ({reason}): {advice}"
    )
