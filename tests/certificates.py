"""Certificates for tests, made with the openssl command."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from batonmq.net.tls import TlsConfig


@dataclass(frozen=True)
class Authority:
    """A certificate authority and its directory."""

    directory: Path

    @property
    def certificate(self) -> Path:
        return self.directory / "ca.pem"

    def issue(self, name: str, *, days: int = 2) -> tuple[Path, Path]:
        """(certificate, key) for `name`; with `days` below 0 it has expired."""
        key, request, certificate = (self.directory / f"{name}.{end}" for end in ("key", "csr", "pem"))
        if not certificate.exists():
            _openssl("req", *_NEW_KEY, "-subj", f"/CN={name}", "-keyout", key, "-out", request)
            issuer = ("-CA", self.certificate, "-CAkey", self.directory / "ca.key", "-CAcreateserial")
            _openssl("x509", "-req", "-in", request, *issuer, "-days", days, "-out", certificate)
        return certificate, key

    def tls(self, name: str, *, days: int = 2, trust: Authority | None = None) -> TlsConfig:
        """The keys of a broker with a certificate of this authority that trusts `trust`, or this one."""
        certificate, key = self.issue(name, days=days)
        return TlsConfig(
            server_cert_path=str(certificate),
            server_key_path=str(key),
            server_trust_cert_path=str((trust or self).certificate),
        )

    def settings(self, name: str, *, days: int = 2, trust: Authority | None = None) -> dict[str, object]:
        """The same, as lines of a broker's file."""
        tls = self.tls(name, days=days, trust=trust)
        return {
            "haTlsEnable": "true",
            "tls.server.certPath": tls.server_cert_path,
            "tls.server.keyPath": tls.server_key_path,
            "tls.server.trustCertPath": tls.server_trust_cert_path,
        }

    def mutual(self, name: str) -> dict[str, object]:
        """Lines of a program that demands certificates of all who connect, and shows its own."""
        certificate, key = self.issue(name)
        return {
            "tls.server.mode": "enforcing",
            "tls.server.certPath": certificate,
            "tls.server.keyPath": key,
            "tls.server.need.client.auth": "require",
            "tls.server.authClient": "true",
            "tls.server.trustCertPath": self.certificate,
            "tls.enable": "true",
            "tls.client.certPath": certificate,
            "tls.client.keyPath": key,
            "tls.client.authServer": "true",
            "tls.client.trustCertPath": self.certificate,
        }


def authority(directory: Path) -> Authority:
    """A new authority; skips the test where there is no openssl."""
    if shutil.which("openssl") is None:
        pytest.skip("the openssl command is not installed; it makes the test's certificates")
    directory.mkdir()
    key, certificate = directory / "ca.key", directory / "ca.pem"
    _openssl("req", "-x509", *_NEW_KEY, "-days", 2, "-subj", "/CN=ca", "-keyout", key, "-out", certificate)
    return Authority(directory)


_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


def _openssl(*words: object) -> None:
    subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True)
