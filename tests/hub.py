"""A small Hugging Face hub over HTTP: serves folders as repositories to the real client libraries.

`<root>/models/<owner>/<name>` is a model, `<root>/datasets/<owner>/<name>` a dataset; what lies in the folder now is
the branch `main`, and a folder `<name>@<revision>` beside it is another branch or tag. A commit is the digest of the
files, so that a changed folder is a new commit. Used by the runner's tests and by the journeys on the cluster
(`python -m tests.hub --help`). Not here: uploads, Git, the chunk store of large files.
"""

import argparse
import contextlib
import hashlib
import json
import re
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

_LARGE_FILES = (".safetensors", ".bin", ".parquet", ".gz", ".gguf")
_API = re.compile(
    r"/api/(?P<kind>models|datasets)/(?P<repo>[^/]+/[^/]+)"
    r"(?:/(?P<action>revision|tree|paths-info)/(?P<revision>[^/]+)(?:/(?P<path>.+))?|/(?P<check>auth-check))?"
)
_RESOLVE = re.compile(r"/(?P<kind>datasets/)?(?P<repo>[^/]+/[^/]+)/resolve/(?P<revision>[^/]+)/(?P<path>.+)")
_PIECE = 1 << 16


@dataclass(frozen=True)
class Request:
    """One request that was answered."""

    method: str
    path: str
    status: int
    size: int
    """Bytes of the body."""


class _RefusalError(Exception):
    """An answer that is no success, with the hub's code of the reason."""

    def __init__(self, status: HTTPStatus, code: str, message: str, commit: str = "") -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.commit = status, code, message, commit


@dataclass(frozen=True)
class _Commit:
    """One state of a repository: the files by their paths."""

    name: str
    files: Mapping[str, Path]


@dataclass
class Hub:
    """The server; serves from `with` on, until it is left.

    Args:
        root: the folder with `models` and `datasets`.
        host, port: the address to listen on; port 0 takes a free one.
        gated: repositories whose files need a token, each with the one that it accepts.
        private: the same for repositories that do not even show themselves without it.
    """

    root: Path
    host: str = "127.0.0.1"
    port: int = 0
    gated: Mapping[str, str] = field(default_factory=dict)
    private: Mapping[str, str] = field(default_factory=dict)
    requests: list[Request] = field(default_factory=list)
    is_down: bool = False
    """While it is set, every request is answered with 503."""
    bytes_per_second: int | None = None
    """How fast a file is sent; None as fast as can be."""

    def __enter__(self) -> "Hub":
        handler = type("Handler", (_Handler,), {"hub": self})
        self._server = ThreadingHTTPServer((self.host, self.port), handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, name="hub", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def url(self) -> str:
        """What HF_ENDPOINT must be."""
        return f"http://{self.host}:{self.port}"

    @property
    def downloads(self) -> list[Request]:
        """Requests that brought a file's bytes."""
        return [entry for entry in self.requests if entry.method == "GET" and "/resolve/" in entry.path]

    def commit(self, repo: str, kind: str = "models", revision: str = "main") -> str:
        """The commit that a revision of a repository names now."""
        return self._commits(kind, repo)[revision].name

    def find(self, kind: str, repo: str, revision: str, token: str) -> _Commit:
        if repo in self.private and token != self.private[repo]:
            raise _unknown_repository(token)
        commits = self._commits(kind, repo)
        if not commits:
            raise _unknown_repository(token)
        found = commits.get(revision) or next((entry for entry in commits.values() if entry.name == revision), None)
        if found is None:
            raise _RefusalError(HTTPStatus.NOT_FOUND, "RevisionNotFound", f"Invalid rev id: {revision}")
        return found

    def require_access(self, repo: str, token: str) -> None:
        """Refuse the files of a gated repository: it shows itself, but gives nothing away."""
        if repo in self.gated and token != self.gated[repo]:
            status = HTTPStatus.FORBIDDEN if token else HTTPStatus.UNAUTHORIZED
            raise _RefusalError(status, "GatedRepo", f"Access to {repo} is restricted")

    def _commits(self, kind: str, repo: str) -> dict[str, _Commit]:
        owner, _, name = repo.partition("/")
        parent = self.root / kind / owner
        folders = {"main": parent / name}
        folders |= {path.name.partition("@")[2]: path for path in parent.glob(f"{name}@*")}
        return {revision: _commit_of(folder) for revision, folder in folders.items() if folder.is_dir()}


def _commit_of(folder: Path) -> _Commit:
    files = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}
    digest = hashlib.sha1()
    for name, path in files.items():
        digest.update(f"{name}\0{_object_id(path)}\n".encode())
    return _Commit(digest.hexdigest(), files)


def _object_id(path: Path) -> str:
    """What Git, or its extension for large files, names the content of a file."""
    if path.suffix in _LARGE_FILES:
        with path.open("rb") as content:
            return hashlib.file_digest(content, "sha256").hexdigest()
    content = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def _unknown_repository(token: str) -> _RefusalError:
    status = HTTPStatus.NOT_FOUND if token else HTTPStatus.UNAUTHORIZED
    return _RefusalError(status, "RepoNotFound", "Repository not found")


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        try:
            if self.hub.is_down:
                raise _RefusalError(HTTPStatus.SERVICE_UNAVAILABLE, "", "down for a test")
            self._route(body)
        except _RefusalError as refusal:
            headers = {"X-Error-Code": refusal.code, "X-Error-Message": refusal.message}
            headers |= {"X-Repo-Commit": refusal.commit} if refusal.commit else {}
            self._send(refusal.status, json.dumps({"error": refusal.message}).encode(), headers)
        except ConnectionError:
            self.close_connection = True

    def _route(self, body: bytes) -> None:
        url = urlsplit(self.path)
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if found := _API.fullmatch(url.path):
            part = {name: unquote(value or "") for name, value in found.groupdict().items()}
            commit = self.hub.find(part["kind"], part["repo"], part["revision"] or "main", token)
            if part["check"]:
                self.hub.require_access(part["repo"], token)
            if part["action"] == "tree":
                recursive = parse_qs(url.query).get("recursive", ["false"])[0].lower() == "true"
                return self._send_json(_tree(commit, part["path"], recursive))
            if part["action"] == "paths-info":
                return self._send_json(_entries(commit, parse_qs(body.decode()).get("paths", [])))
            return self._send_json(_information(part["repo"], commit, part["repo"] in self.hub.gated))
        if found := _RESOLVE.fullmatch(url.path):
            part = {name: unquote(value or "") for name, value in found.groupdict().items()}
            kind = "datasets" if part["kind"] else "models"
            commit = self.hub.find(kind, part["repo"], part["revision"], token)
            self.hub.require_access(part["repo"], token)
            return self._send_file(commit, part["path"])
        raise _RefusalError(HTTPStatus.NOT_FOUND, "", f"nothing is served at {url.path}")

    def _send_json(self, document: Any) -> None:
        self._send(HTTPStatus.OK, json.dumps(document).encode(), {"Content-Type": "application/json"})

    def _send(self, status: HTTPStatus, body: bytes, headers: Mapping[str, str]) -> None:
        self._begin(status, len(body), headers)
        if self.command != "HEAD":
            self.wfile.write(body)

    def _begin(self, status: HTTPStatus, size: int, headers: Mapping[str, str]) -> None:
        # Before the answer: whoever waits for it finds the request counted.
        self.hub.requests.append(Request(self.command, self.path, int(status), 0 if self.command == "HEAD" else size))
        self.send_response(status)
        self.send_header("Content-Length", str(size))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def _send_file(self, commit: _Commit, path: str) -> None:
        file = commit.files.get(path)
        if file is None:
            raise _RefusalError(HTTPStatus.NOT_FOUND, "EntryNotFound", f"no {path}", commit.name)
        size = file.stat().st_size
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        first = int(asked[1]) if asked else 0
        last = min(int(asked[2]) if asked and asked[2] else size - 1, size - 1)
        headers = {
            "X-Repo-Commit": commit.name,
            "ETag": f'"{_object_id(file)}"',
            "Accept-Ranges": "bytes",
            "Content-Type": "application/octet-stream",
        }
        if asked:
            headers["Content-Range"] = f"bytes {first}-{last}/{size}"
        left = last - first + 1
        self._begin(HTTPStatus.PARTIAL_CONTENT if asked else HTTPStatus.OK, left, headers)
        if self.command == "HEAD":
            return
        with file.open("rb") as content:
            content.seek(first)
            while left:
                piece = content.read(min(_PIECE, left))
                self.wfile.write(piece)
                left -= len(piece)
                if self.hub.bytes_per_second:
                    time.sleep(len(piece) / self.hub.bytes_per_second)

    def log_message(self, *arguments: object) -> None:
        """Say nothing; `requests` has it all."""


def _information(repo: str, commit: _Commit, gated: bool) -> dict[str, Any]:
    siblings = [{"rfilename": path} for path in commit.files]
    return {"id": repo, "sha": commit.name, "private": False, "gated": "auto" if gated else False, "siblings": siblings}


def _tree(commit: _Commit, folder: str, recursive: bool) -> list[dict[str, Any]]:
    prefix = f"{folder}/" if folder else ""
    below = [path for path in (*commit.files, *_folders(commit)) if path.startswith(prefix)]
    if prefix and not below:
        raise _RefusalError(HTTPStatus.NOT_FOUND, "EntryNotFound", f"no {folder}", commit.name)
    return _entries(commit, [path for path in below if recursive or "/" not in path.removeprefix(prefix)])


def _entries(commit: _Commit, paths: list[str]) -> list[dict[str, Any]]:
    folders = _folders(commit)
    found = []
    for path in sorted(paths):
        if path in folders:
            oid = hashlib.sha1(path.encode()).hexdigest()
            found.append({"type": "directory", "path": path, "oid": oid, "size": 0})
        elif path in commit.files:
            file = commit.files[path]
            entry = {"type": "file", "path": path, "oid": _object_id(file)[:40], "size": file.stat().st_size}
            if file.suffix in _LARGE_FILES:
                entry["lfs"] = {"oid": _object_id(file), "size": file.stat().st_size, "pointerSize": 134}
            found.append(entry)
    return found


def _folders(commit: _Commit) -> set[str]:
    return {parent.as_posix() for path in commit.files for parent in Path(path).parents if parent != Path(".")}


def _pair(text: str) -> tuple[str, str]:
    repo, separator, token = text.partition("=")
    if not separator:
        raise argparse.ArgumentTypeError(f"{text} must be <owner>/<name>=<token>")
    return repo, token


def main(arguments: list[str] | None = None) -> int:
    """Serve until the process is stopped."""
    parser = argparse.ArgumentParser(prog="python -m tests.hub", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("root", type=Path, help="folder with models/<owner>/<name> and datasets/<owner>/<name>")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument("--port", type=int, default=0, help="port to listen on (default: a free one)")
    parser.add_argument("--gated", type=_pair, action="append", default=[], help="<owner>/<name>=<token>, repeatable")
    parser.add_argument("--private", type=_pair, action="append", default=[], help="<owner>/<name>=<token>, repeatable")
    chosen = parser.parse_args(arguments)
    if not chosen.root.is_dir():
        parser.error(f"{chosen.root} is no folder")
    hub = Hub(chosen.root, chosen.host, chosen.port, dict(chosen.gated), dict(chosen.private))
    with hub:
        print(f"HF_ENDPOINT={hub.url}", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            threading.Event().wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())
