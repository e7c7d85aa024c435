"""How a replica registers and which roles it takes, and the files that keep its id."""

import pytest

from batonmq.broker.replica.core import ReplicasCore, Role, Step
from batonmq.broker.replica.identity import Identity, IdentityFiles
from batonmq.common.config import ConfigError
from batonmq.ha.autoswitch.sync_state import SyncStateSet


def role(epoch: int, master_id: int = 1, address: str = "") -> Role:
    members = SyncStateSet(frozenset({master_id}), epoch)
    return Role(epoch, master_id, address or f"10.0.0.{master_id}:10911", members)


def registered(broker_id: int = 1, last_epoch: int = -1) -> ReplicasCore:
    core = ReplicasCore("c", "b", Identity("c", "b", broker_id), last_epoch)
    assert core.registered(None)
    return core


def test_a_new_broker_claims_an_id_then_registers_then_asks_to_be_elected():
    core = ReplicasCore("c", "b", None, -1)
    assert core.next_step() is Step.GET_NEXT_ID
    assert core.claim_id(3, "10.0.0.1:10911", 1700).check_code == "10.0.0.1:10911;1700"
    assert core.next_step() is Step.APPLY_ID
    assert core.broker_id is None, "the id is not granted yet"
    assert core.id_granted() == Identity("c", "b", 3)
    assert core.next_step() is Step.REGISTER
    assert not core.may_heartbeat
    assert core.registered(None)
    assert core.may_heartbeat
    assert core.next_step() is Step.ELECT
    core.role_reported(role(1, 3))
    assert core.next_step() is Step.RUN
    assert core.next_role() == role(1, 3)
    core.role_taken(taken := core.next_role())
    assert core.is_master
    assert core.role is taken
    assert core.next_role() is None


def test_a_learner_waits_for_a_master_and_never_asks_to_be_elected():
    core = ReplicasCore("c", "b", Identity("c", "b", 2), -1, learner=True)
    assert core.next_step() is Step.REGISTER
    assert core.registered(None) and core.may_heartbeat
    assert core.next_step() is Step.RUN and core.next_role() is None
    core.role_reported(role(1, 1))
    assert core.next_role() == role(1, 1)
    core.role_taken(role(1, 1))
    core.role_reported(None)
    assert core.next_step() is Step.RUN


def test_a_claim_from_before_a_crash_is_applied_for_again():
    core = ReplicasCore("c", "b", Identity("c", "b", 2, "a;1"), -1)
    assert core.next_step() is Step.APPLY_ID
    core.id_refused()
    assert core.next_step() is Step.GET_NEXT_ID


def test_only_newer_epochs_change_the_role():
    core = registered()
    core.role_reported(role(5, 2))
    core.role_reported(role(4, 1))
    assert core.next_role() == role(5, 2)
    core.role_taken(core.next_role())
    for stale in (role(5, 1), role(4, 1)):
        core.role_reported(stale)
        assert core.next_role() is None
    core.role_reported(role(6, 1))
    core.role_reported(role(7, 2))
    assert core.next_role() == role(7, 2), "the newest of several"


def test_a_role_reported_during_a_switch_is_not_lost():
    core = registered()
    core.role_reported(role(1))
    under_way = core.next_role()
    core.role_reported(role(2, 2))
    core.role_taken(under_way)
    assert core.next_role() == role(2, 2)


def test_a_failed_role_is_tried_again_when_it_is_reported_again():
    core = registered()
    core.role_reported(role(1))
    core.role_failed(core.next_role())
    assert core.next_role() is None
    core.role_reported(role(1))
    assert core.next_role() == role(1)


def test_a_master_that_moved_is_followed_to_its_new_address():
    core = registered(broker_id=2)
    core.role_reported(role(1))
    core.role_taken(core.next_role())
    core.role_reported(role(1, address="10.9.9.9:10911"))
    assert core.next_role().master_address == "10.9.9.9:10911"


def test_an_epoch_from_before_a_restart_is_not_resumed():
    """A crash may have cut bytes of this epoch from the log that slaves have."""
    core = ReplicasCore("c", "b", Identity("c", "b", 1), last_epoch=7)
    assert not core.registered(role(7, 1))
    assert core.next_step() is Step.REGISTER
    assert not core.may_heartbeat, "with a heartbeat the controllers would never drop it as master"
    assert core.registered(None)
    assert core.next_step() is Step.ELECT
    core.role_reported(role(9, 1))
    assert core.next_role() == role(9, 1)


def test_an_epoch_from_before_a_restart_is_not_resumed_when_reported_later():
    """The controller reported no master at the registration, and took the first heartbeat as a sign that the
    old master was alive (simulation seed 20023)."""
    core = ReplicasCore("c", "b", Identity("c", "b", 1), last_epoch=7)
    assert core.registered(None)
    core.role_reported(role(7, 1))
    assert core.next_role() is None
    assert core.next_step() is Step.REGISTER
    assert not core.may_heartbeat
    assert core.registered(None)
    core.role_reported(role(8, 1))
    core.role_reported(role(7, 1))
    assert core.next_role() == role(8, 1), "an old notice that overtook a new one"
    assert core.may_heartbeat


def test_a_slave_may_return_to_its_epoch():
    core = ReplicasCore("c", "b", Identity("c", "b", 2), last_epoch=7)
    assert core.registered(role(7, 1))
    assert core.next_role() == role(7, 1)


def test_a_lost_master_makes_it_ask_for_election():
    core = registered()
    core.role_reported(role(1))
    core.role_taken(core.next_role())
    core.role_reported(None)
    assert core.next_step() is Step.ELECT
    assert core.is_master, "until the controller names another"


def test_identity_files_are_rocketmqs(tmp_path):
    files = IdentityFiles(tmp_path / "store" / "brokerIdentity")
    assert files.load("c", "b") is None
    files.save(Identity("c", "b", 2, "10.0.0.1:10911;1700"))
    assert (tmp_path / "store" / "brokerIdentity-temp").read_text() == "c#b#2#10.0.0.1:10911;1700"
    assert files.load("c", "b") == Identity("c", "b", 2, "10.0.0.1:10911;1700")
    files.save(Identity("c", "b", 2))
    assert (tmp_path / "store" / "brokerIdentity").read_text() == "c#b#2"
    assert not files.claim_path.exists()
    assert files.load("c", "b") == Identity("c", "b", 2)
    files.drop_claim()


@pytest.mark.parametrize(
    "text",
    ["c#b", "c#b#x", "c##2", "c#b#2#3", "c#b#-3", "c#b#+7", "c#b#0", "c#b#1_0", "c#b#" + "9" * 19, "c#b#²"],
)
def test_a_broken_identity_stops_the_broker(tmp_path, text):
    files = IdentityFiles(tmp_path / "brokerIdentity")
    files.path.write_text(text)
    with pytest.raises(ConfigError, match="brokerIdentity"):
        files.load("c", "b")


def test_an_identity_of_another_broker_stops_the_broker(tmp_path):
    files = IdentityFiles(tmp_path / "brokerIdentity")
    files.save(Identity("c", "other", 2))
    with pytest.raises(ConfigError, match="belongs to broker other"):
        files.load("c", "b")


@pytest.mark.parametrize(
    ("cluster", "name", "key"), [("c#1", "b", "brokerClusterName"), ("c", "b#1", "brokerName")]
)
def test_a_name_that_the_identity_file_cannot_hold_stops_the_broker(tmp_path, cluster, name, key):
    """It registered, and could not read its file at the next start."""
    with pytest.raises(ConfigError, match=f"{key}={cluster if key == 'brokerClusterName' else name}: no '#'"):
        IdentityFiles(tmp_path / "brokerIdentity").load(cluster, name)
