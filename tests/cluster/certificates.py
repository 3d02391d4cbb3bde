"""One certificate authority per cluster, and the certificates and kubeconfig files that it issues.

Called by the profiles and by tests that need a user of their own. Uses the `openssl` program, one call per
certificate. Nothing here is secret beyond the life of a local cluster.
"""

import base64
import json
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.errors import ClusterError

VALID_DAYS = 365
# Without a configuration of its own, openssl would mark every certificate as an authority.
CONFIGURATION = "[req]\ndistinguished_name = name\nprompt = no\n[name]\nCN = replaced\n"


@dataclass(frozen=True)
class Certificate:
    """A certificate and its private key, as PEM files."""

    certificate: Path
    key: Path


@dataclass(frozen=True)
class Authority:
    """The certificate authority in one folder; every method reuses what is already there."""

    folder: Path

    @property
    def certificate(self) -> Path:
        """The authority's own certificate."""
        return self.folder / "ca.crt"

    @property
    def key(self) -> Path:
        """The authority's own private key."""
        return self.folder / "ca.key"

    @property
    def token_key(self) -> Path:
        """The key (EC, in the form that the API server reads both ways) that signs ServiceAccount tokens."""
        return self.folder / "service-account.key"

    def create(self) -> None:
        """Make the authority and the token key, unless they exist."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o700)
        (self.folder / "openssl.cnf").write_text(CONFIGURATION)
        if not self.certificate.exists():
            self._request(
                self.certificate,
                self.key,
                "/CN=agent-tuning-test-authority",
                ["basicConstraints=critical,CA:TRUE", "keyUsage=critical,keyCertSign,digitalSignature"],
            )
        if not self.token_key.exists():
            _openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", str(self.token_key))

    def server(self, name: str, common_name: str, alternative_names: Sequence[str]) -> Certificate:
        """Issue a server certificate; alternative names are like `DNS:localhost` and `IP:127.0.0.1`."""
        extensions = ["extendedKeyUsage=serverAuth", f"subjectAltName={','.join(alternative_names)}"]
        return self._issue(name, f"/CN={common_name}", extensions)

    def client(self, name: str, user: str, groups: Sequence[str] = ()) -> Certificate:
        """Issue a client certificate: the API server takes CN as the user and each O as a group."""
        subject = "".join(f"/O={_escaped(group)}" for group in groups) + f"/CN={_escaped(user)}"
        return self._issue(name, subject, ["extendedKeyUsage=clientAuth"])

    def kubeconfig(self, path: Path, server: str, client: Certificate) -> Path:
        """Write a kubeconfig that carries its certificates inside; returns its path. JSON is YAML, too."""
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {"name": "local", "cluster": {"server": server, "certificate-authority-data": _data(self.certificate)}}
            ],
            "users": [
                {
                    "name": "user",
                    "user": {
                        "client-certificate-data": _data(client.certificate),
                        "client-key-data": _data(client.key),
                    },
                }
            ],
            "contexts": [{"name": "local", "context": {"cluster": "local", "user": "user"}}],
            "current-context": "local",
        }
        path.write_text(json.dumps(document, indent=1))
        path.chmod(0o600)
        return path

    def _issue(self, name: str, subject: str, extensions: list[str]) -> Certificate:
        issued = Certificate(self.folder / f"{name}.crt", self.folder / f"{name}.key")
        if not issued.certificate.exists():
            signer = ["-CA", str(self.certificate), "-CAkey", str(self.key)]
            common = ["basicConstraints=critical,CA:FALSE", "keyUsage=critical,digitalSignature", *extensions]
            self._request(issued.certificate, issued.key, subject, common, signer)
        return issued

    def _request(
        self, certificate: Path, key: Path, subject: str, extensions: list[str], signer: Sequence[str] = ()
    ) -> None:
        draft = certificate.with_suffix(".draft")
        command = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-utf8"]
        command += ["-config", str(self.folder / "openssl.cnf"), "-days", str(VALID_DAYS), "-subj", subject, *signer]
        command += [part for extension in extensions for part in ("-addext", extension)]
        _openssl(*command, "-keyout", str(key), "-out", str(draft))
        draft.rename(certificate)


def groups_of(user: str) -> tuple[str, ...]:
    """Return the groups that Kubernetes gives a ServiceAccount's user name; none for any other user."""
    parts = user.split(":")
    if parts[:2] == ["system", "serviceaccount"] and len(parts) == 4:
        return ("system:serviceaccounts", f"system:serviceaccounts:{parts[2]}")
    return ()


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("/", "\\/").replace("+", "\\+")


def _data(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()


def _openssl(*arguments: str) -> None:
    done = subprocess.run(["openssl", *arguments], capture_output=True, text=True, timeout=60, check=False)
    if done.returncode != 0:
        raise ClusterError(f"openssl {arguments[0]} failed:\n{done.stderr[-2000:]}")
