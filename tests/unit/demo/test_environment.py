"""The demonstration's jobs work on its own cluster, whatever the environment says about others."""

from __future__ import annotations

import pytest

pytest.importorskip("pyarrow")

from batonmq.demo.main import environment_of_jobs


def test_a_job_gets_no_credentials_and_no_tls_of_another_cluster() -> None:
    other = {
        "BATONMQ_ACCESS_KEY": "a",
        "BATONMQ_CREDENTIALS": "/c",
        "BATONMQ_SECRET_KEY": "s",
        "BATONMQ_SECURITY_TOKEN": "t",
        "BATONMQ_TLS_CONFIG": "/t",
    }
    assert environment_of_jobs({**other, "PATH": "/bin", "BATONMQ_PURE": "1"}) == {
        "PATH": "/bin",
        "BATONMQ_PURE": "1",
    }
