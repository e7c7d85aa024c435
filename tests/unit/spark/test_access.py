"""What source and sink parse is what a job's access says, and nothing shows its secrets."""

from __future__ import annotations

import pytest

from batonmq.protocol.signing import Credentials
from batonmq.spark.access import OPEN, Access
from batonmq.spark.jobs.mirror import Mirror
from batonmq.spark.jobs.replay import Replay
from batonmq.spark.jobs.restore import Restore
from batonmq.spark.options import TlsOptions, parse_read_options
from batonmq.spark.sink.options import parse_sink_options

SECRETS = ("hidden-secret", "hidden-token", "hidden-password")
FULL = Access(
    tls=TlsOptions(
        auth_server=True,
        trust_cert_path="/ca.pem",
        cert_path="/me.pem",
        key_path="/me.key",
        key_password="hidden-password",
    ),
    credentials=Credentials("root", "hidden-secret", "hidden-token"),
)


@pytest.mark.parametrize(
    "access",
    [
        OPEN,
        FULL,
        Access(tls=TlsOptions()),
        Access(tls=TlsOptions(cert_path="/me.pem")),
        Access(credentials=Credentials("root", "hidden-secret")),
    ],
)
def test_source_and_sink_get_the_same_access_from_its_options(access: Access) -> None:
    options = {"namesrvAddr": "a:1", **access.options()}
    reads = parse_read_options({**options, "subscribe": "T"}, streaming=False)
    assert (reads.tls, reads.credentials) == (access.tls, access.credentials)
    writes = parse_sink_options({**options, "topic": "T"})
    assert (writes.tls, writes.credentials) == (access.tls, access.credentials)


def test_an_open_cluster_needs_no_options() -> None:
    assert OPEN.options() == {} and OPEN.client() == {"tls": None, "credentials": None}


def test_jobs_show_no_secret_and_do_not_keep_it_in_their_state(tmp_path) -> None:
    jobs = (
        Mirror("a:1", "b:1", ("T",), tmp_path, access=FULL, target_access=FULL),
        Replay("a:1", "T", "U", tmp_path, access=FULL, target_access=FULL),
        Restore("a:1", "/archive", tmp_path, access=FULL),
    )
    for job in jobs:
        shown = repr(job) + job.identity
        assert not [secret for secret in SECRETS if secret in shown]


def test_a_changed_secret_does_not_make_another_job(tmp_path) -> None:
    assert (
        Mirror("a:1", "b:1", ("T",), tmp_path, access=FULL).identity
        == Mirror("a:1", "b:1", ("T",), tmp_path).identity
    )
