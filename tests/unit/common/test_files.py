"""Files that are replaced whole keep their permissions."""

from __future__ import annotations

import stat

import pytest

from batonmq.broker.tables.files import TableFile
from batonmq.common.files import replace_file


def mode(path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("before", [0o600, 0o640, 0o644])
def test_who_may_read_a_file_may_read_it_afterwards_and_nobody_else(tmp_path, before):
    path = tmp_path / "b.conf"
    path.write_bytes(b"haSecret=x")
    path.chmod(before)
    (tmp_path / "b.conf.tmp").write_bytes(b"of a crash, for all to read")
    replace_file(path, b"haSecret=y")
    assert (mode(path), path.read_bytes()) == (before, b"haSecret=y")
    TableFile(path).write(b"haSecret=z")
    assert (mode(path), path.read_bytes()) == (before, b"haSecret=z")
    assert mode(tmp_path / "b.conf.bak") == before
    assert not (tmp_path / "b.conf.tmp").exists()


def test_a_new_file_with_secrets_is_its_owners(tmp_path):
    replace_file(tmp_path / "sub" / "secret", b"x", private=True)
    replace_file(tmp_path / "plain", b"x")
    assert mode(tmp_path / "sub" / "secret") == 0o600
    assert mode(tmp_path / "plain") & 0o400
