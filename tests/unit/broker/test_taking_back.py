"""What a master that returns takes from the slaves that were there meanwhile, table by table."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from tests.unit.broker.conftest import Served
from tests.unit.broker.fakes import ask, make_broker

from batonmq.broker.config import BrokerConfig
from batonmq.broker.replica.fixed_role import starts_isolated
from batonmq.broker.tables.copying import copy_offsets
from batonmq.broker.tables.offsets import OffsetTable
from batonmq.broker.tables.persistence import Table
from batonmq.broker.timer.layout import Checkpoint, decode_checkpoint
from batonmq.broker.versions import ACTING_STEP
from batonmq.common.clock import ManualClock
from batonmq.ha.classic.service import ClassicHAService
from batonmq.ha.config import HAConfig
from batonmq.protocol.bodies.common import DataVersion
from batonmq.protocol.bodies.groups import SubscriptionGroupConfig, SubscriptionGroupWrapper
from batonmq.protocol.bodies.statistics import ConsumerOffsetSerializeWrapper, ResetOffsets
from batonmq.protocol.bodies.topics import TopicConfig, TopicConfigAndMappingSerializeWrapper
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.broker.admin import GetTimerCheckPoint
from batonmq.protocol.headers.broker.pull import (
    GetAllConsumerOffset,
    GetAllDelayOffset,
    UpdateConsumerOffset,
)
from batonmq.protocol.headers.broker.replication import (
    ExchangeHAInfo,
    ExchangeHAInfoResponse,
    GetAllResetOffset,
)
from batonmq.protocol.headers.broker.topics import GetAllSubscriptionGroup, GetAllTopicConfig
from batonmq.protocol.json import encode
from batonmq.protocol.registry import Header


class Slave:
    """A member of the broker set, with what its tables hold (`persistence.Member`)."""

    announces_changes, address = True, "10.0.0.2:10911"

    def __init__(self, answers: dict[type[Header], bytes | MQError]) -> None:
        self.answers = answers
        self.acted = False
        self.asked: list[Header] = []

    async def fetch(self, header: Header) -> bytes:
        self.asked.append(header)
        answer = self.answers[type(header)]
        if isinstance(answer, MQError):
            raise answer
        return answer


def version(counter: int) -> DataVersion:
    return DataVersion(timestamp=5, counter=counter)


def table(served: Served, name: str) -> Table:
    (found,) = (each for each in served.broker.tables.persistence if each.name == name)
    return found


async def take(served: Served, name: str, slave: Slave) -> bool:
    take_back = table(served, name).take_back
    assert take_back is not None
    return await take_back(slave)


def offsets_of(counter: int, queues: dict[int, int], key: str = "TopicJ@g") -> bytes:
    return encode(ConsumerOffsetSerializeWrapper({key: queues}, version(counter)))


async def test_offsets_of_an_acting_slave_replace_older_ones_also_where_they_went_back(
    served: Served,
) -> None:
    offsets = served.broker.tables.offsets
    offsets.replace({"TopicJ@g": {0: 50, 1: 10, 2: 7}}, version(3))
    slave = Slave({GetAllConsumerOffset: offsets_of(ACTING_STEP, {0: 20, 1: 15})})
    assert await take(served, "consumerOffset", slave) and slave.acted
    assert offsets.of("g", "TopicJ") == {0: 20, 1: 15, 2: 7}
    assert offsets.version.counter == ACTING_STEP
    # Asked again, right before the master serves: the slave has committed once more in the same version.
    slave.answers[GetAllConsumerOffset] = offsets_of(ACTING_STEP, {0: 25, 1: 15})
    assert await take(served, "consumerOffset", slave) and slave.acted
    assert offsets.query("g", "TopicJ", 0) == 25


async def test_of_one_version_the_greater_offsets_count_and_an_older_one_changes_nothing(
    served: Served,
) -> None:
    offsets = served.broker.tables.offsets
    offsets.replace({"TopicJ@g": {0: 50, 1: 10}}, version(3))
    slave = Slave({GetAllConsumerOffset: offsets_of(3, {0: 40, 1: 15, 2: 1})})
    assert await take(served, "consumerOffset", slave) and not slave.acted
    assert offsets.of("g", "TopicJ") == {0: 50, 1: 15, 2: 1}
    slave.answers[GetAllConsumerOffset] = offsets_of(2, {0: 99})
    assert not await take(served, "consumerOffset", slave)
    assert offsets.query("g", "TopicJ", 0) == 50


async def test_rocketmqs_offsets_with_bare_keys_are_read(served: Served) -> None:
    data = (
        b'{"dataVersion":{"counter":9,"stateVersion":0,"timestamp":7},'
        b'"groupTopicMap":{"g":["TopicJ"]},"offsetTable":{"TopicJ@g":{0:10,1:20}}}'
    )
    assert await take(served, "consumerOffset", Slave({GetAllConsumerOffset: data}))
    assert served.broker.tables.offsets.of("g", "TopicJ") == {0: 10, 1: 20}


def test_ours_are_written_so_that_rocketmqs_parser_reads_them(served: Served) -> None:
    """fastjson2 stops at keys without quotes in fields that it skips, and reads `offsetTable` first here."""
    served.broker.tables.offsets.replace({"TopicJ@g": {0: 1}}, version(3))
    assert served.broker.tables.offsets.encode().startswith(
        b'{"offsetTable":{"TopicJ@g":{"0":1}},"dataVersion"'
    )


async def test_resets_and_filters_come_from_a_slave_that_acted_only(served: Served) -> None:
    slave = Slave({GetAllResetOffset: encode(ResetOffsets({"TopicJ@g": {0: 5}}))})
    assert not await take(served, "resetOffset", slave)
    assert slave.asked == [] and not served.broker.tables.offsets.has_reset("g", "TopicJ", 0)
    slave.acted = True
    assert await take(served, "resetOffset", slave)
    assert served.broker.tables.offsets.query("g", "TopicJ", 0) == 5


async def test_newer_topics_and_groups_are_added_and_own_ones_stay(served: Served) -> None:
    topics, groups = served.broker.tables.topics, served.broker.tables.subscriptions
    groups.get_or_create("own")
    newer = version(topics.version.counter + 1)
    theirs = {"New": TopicConfig(topic_name="New", read_queue_nums=2, write_queue_nums=2)}
    slave = Slave(
        {
            GetAllTopicConfig: encode(
                TopicConfigAndMappingSerializeWrapper(topic_config_table=theirs, data_version=newer)
            ),
            GetAllSubscriptionGroup: encode(
                SubscriptionGroupWrapper(
                    subscription_group_table={"acted": SubscriptionGroupConfig(group_name="acted")},
                    data_version=version(groups.version.counter + 1),
                )
            ),
        }
    )
    assert await take(served, "topics", slave) and await take(served, "subscriptionGroup", slave)
    assert "New" in topics and "TopicJ" in topics and topics.version == newer
    assert "acted" in groups and "own" in groups
    assert not await take(served, "topics", slave) and not await take(served, "subscriptionGroup", slave)


async def test_each_delay_level_continues_where_the_further_broker_was(served: Served) -> None:
    schedule = table(served, "delayOffset")
    schedule.restore(b'{"offsetTable":{"1":10,"2":20},"dataVersion":{"counter":90,"timestamp":1}}')
    data = b'{"offsetTable":{1:15,2:5,3:7},"dataVersion":{"counter":4,"timestamp":1,"stateVersion":0}}'
    assert await take(served, "delayOffset", Slave({GetAllDelayOffset: data}))
    written = schedule.encode()
    assert b'{"1":15,"2":20,"3":7}' in written and b'"counter":90' in written
    assert not await take(served, "delayOffset", Slave({GetAllDelayOffset: data}))
    with pytest.raises(ValueError, match="JSON"):
        await take(served, "delayOffset", Slave({GetAllDelayOffset: b"{1:"}))


async def test_a_checkpoint_of_timers_is_taken_if_it_has_delivered_more(served: Served) -> None:
    checkpoint = table(served, "timercheck")
    checkpoint.restore(Checkpoint(5_000, 52, 3, 3, version(9)).encode())
    (service,) = (part.service for part in served.parts if hasattr(part, "service"))  # type: ignore[attr-defined]
    await service.open()
    try:
        further = Checkpoint(9_000, 104, 4, 4, version(2))
        assert await take(served, "timercheck", Slave({GetTimerCheckPoint: further.encode()}))
        assert service.state.done.read_ms == 9_000 and service.state.read_ms == 9_000
        assert decode_checkpoint(checkpoint.encode()).read_ms == 9_000, "a kill would lose it"
        older = Checkpoint(6_000, 104, 4, 4, version(1))
        assert not await take(served, "timercheck", Slave({GetTimerCheckPoint: older.encode()}))
        off = MQError(ResponseCode.SYSTEM_ERROR, "The timer checkpoint is null")
        assert not await take(served, "timercheck", Slave({GetTimerCheckPoint: off}))
        with pytest.raises(ValueError):
            await take(served, "timercheck", Slave({GetTimerCheckPoint: b"x"}))
    finally:
        await service.close(failed=False)


async def test_commits_to_an_acting_slave_that_its_master_missed_are_handed_over() -> None:
    offsets = OffsetTable(ManualClock())
    offsets.replace({"T@g": {0: 5, 1: 5, 2: 5}}, version(1))
    offsets.act(True)
    offsets.commit("g", "T", 0, 9)
    offsets.commit("g", "T", 1, 7)
    offsets.act(False)
    offsets.commit("g", "T", 2, 8)  # a client with an old route; the master does not know of it either
    master = Slave(
        {
            GetAllConsumerOffset: offsets_of(ACTING_STEP + 5, {0: 6, 1: 30, 2: 5}, "T@g"),
            UpdateConsumerOffset: b"",
        }
    )
    store: Any = type("Store", (), {"recreated_topics": set()})()
    await copy_offsets(master, offsets, store, frozenset())
    sent = [header for header in master.asked if isinstance(header, UpdateConsumerOffset)]
    assert [(each.consumer_group, each.topic, each.queue_id, each.commit_offset) for each in sent] == [
        ("g", "T", 0, 9),
        ("g", "T", 2, 8),
    ]
    assert all(each.handed_over for each in sent)
    assert offsets.of("g", "T") == {0: 9, 1: 30, 2: 8}
    master.asked.clear()
    await copy_offsets(master, offsets, store, frozenset())
    assert [type(header) for header in master.asked] == [GetAllConsumerOffset]
    assert offsets.of("g", "T") == {0: 6, 1: 30, 2: 5}


async def test_a_slave_that_acts_again_before_it_can_hand_over_still_does() -> None:
    """Another slave had acted, too, and its offsets are the ones that the master took back."""
    offsets = OffsetTable(ManualClock())
    offsets.act(True)
    offsets.commit("g", "T", 0, 9)
    offsets.act(False)
    offsets.act(True)
    offsets.act(False)
    theirs = offsets_of(ACTING_STEP, {0: 6}, "T@g")
    master = Slave({GetAllConsumerOffset: theirs, UpdateConsumerOffset: b""})
    store: Any = type("Store", (), {"recreated_topics": set()})()
    await copy_offsets(master, offsets, store, frozenset())
    sent = [header for header in master.asked if isinstance(header, UpdateConsumerOffset)]
    assert [(each.queue_id, each.commit_offset) for each in sent] == [(0, 9)]
    assert offsets.of("g", "T") == {0: 9}


async def test_a_slave_that_acted_and_was_restarted_hands_over_what_its_master_lacks() -> None:
    """Both were away, and the master served without asking it."""
    acted = OffsetTable(ManualClock())
    acted.replace({"T@g": {0: 5, 1: 5}}, version(1))
    acted.act(True)
    acted.commit("g", "T", 0, 9)
    offsets = OffsetTable(ManualClock())
    offsets.restore(acted.encode())
    master = Slave({GetAllConsumerOffset: offsets_of(4, {0: 6, 1: 7}, "T@g"), UpdateConsumerOffset: b""})
    store: Any = type("Store", (), {"recreated_topics": set()})()
    await copy_offsets(master, offsets, store, frozenset())
    sent = [header for header in master.asked if isinstance(header, UpdateConsumerOffset)]
    assert [(each.queue_id, each.commit_offset) for each in sent] == [(0, 9)]
    assert offsets.of("g", "T") == {0: 9, 1: 7} and offsets.version.counter == 4


async def test_a_master_that_refuses_a_late_offset_is_followed_all_the_same(
    caplog: pytest.LogCaptureFixture,
) -> None:
    offsets = OffsetTable(ManualClock())
    offsets.act(True)
    offsets.commit("g", "T", 0, 9)
    gone = MQError(ResponseCode.TOPIC_NOT_EXIST, "Topic T not exist!")
    master = Slave({GetAllConsumerOffset: offsets_of(1, {}), UpdateConsumerOffset: gone})
    store: Any = type("Store", (), {"recreated_topics": set()})()
    with caplog.at_level(logging.WARNING):
        await copy_offsets(master, offsets, store, frozenset())
    assert "offset 9 of group=g topic=T is not handed over: " in caplog.text


async def test_an_offset_that_an_attempt_may_have_handed_over_is_handed_over_again() -> None:
    """The master has it, but perhaps not on disk: the answer was lost."""
    offsets = OffsetTable(ManualClock())
    offsets.act(True)
    offsets.commit("g", "T", 0, 9)
    failed = MQError(ResponseCode.SYSTEM_ERROR, "in force until a restart: no space left")
    master = Slave({GetAllConsumerOffset: offsets_of(1, {0: 5}, "T@g"), UpdateConsumerOffset: failed})
    store: Any = type("Store", (), {"recreated_topics": set()})()
    with pytest.raises(MQError, match="no space left"):
        await copy_offsets(master, offsets, store, frozenset())
    assert offsets.of("g", "T") == {0: 9}
    master.answers = {GetAllConsumerOffset: offsets_of(1, {0: 9}, "T@g"), UpdateConsumerOffset: b""}
    await copy_offsets(master, offsets, store, frozenset())
    assert [type(header) for header in master.asked[2:]] == [GetAllConsumerOffset, UpdateConsumerOffset]
    assert offsets.of("g", "T") == {0: 9} and offsets.version == version(1)
    await copy_offsets(master, offsets, store, frozenset())
    assert type(master.asked[-1]) is GetAllConsumerOffset


async def test_a_commit_while_a_slave_hands_over_is_handed_over_too() -> None:
    class Slow(Slave):
        async def fetch(self, header: Header) -> bytes:
            if isinstance(header, UpdateConsumerOffset) and header.commit_offset == 9:
                offsets.commit("g", "T", 0, 11)
            return await super().fetch(header)

    offsets = OffsetTable(ManualClock())
    offsets.act(True)
    offsets.commit("g", "T", 0, 9)
    master = Slow({GetAllConsumerOffset: offsets_of(1, {0: 5}, "T@g"), UpdateConsumerOffset: b""})
    store: Any = type("Store", (), {"recreated_topics": set()})()
    await copy_offsets(master, offsets, store, frozenset())
    sent = [each.commit_offset for each in master.asked if isinstance(each, UpdateConsumerOffset)]
    assert sent == [9, 11]
    assert offsets.of("g", "T") == {0: 11}


def test_who_starts_isolated() -> None:
    def isolated(**keys: object) -> bool:
        values: dict[str, Any] = {"broker_name": "b", "total_replicas": 2, "enable_slave_acting_master": True}
        return starts_isolated(BrokerConfig(**{**values, **keys}))

    assert isolated()
    assert not isolated(total_replicas=1)
    assert not isolated(enable_slave_acting_master=False)
    assert not isolated(skip_pre_online=True)
    assert not isolated(enable_controller_mode=True, controller_addr="c:1")


class Follows(ClassicHAService):
    """Replication without sockets."""

    def __init__(self) -> None:
        self.addresses: list[str | None] = []
        self.up = False
        self.hastened = 0

    @property
    def following(self) -> bool:
        return self.up

    @property
    def followed(self) -> str:
        return str(self.addresses[-1]) if self.up else ""

    def set_master_address(self, master_ha_address: str | None) -> None:
        self.addresses.append(master_ha_address)

    def hasten(self) -> None:
        self.hastened += 1

    def master(self) -> None:
        return None


def announced_to(served: Served, **keys: Any) -> Follows:
    broker = served.broker
    broker.settings.broker = make_broker(
        broker_role="SLAVE", broker_id=1, total_replicas=2, enable_slave_acting_master=True, **keys
    ).settings.broker
    broker.role.set_slave(broker_id=1, epoch=0, master_address=None, master_ha_address=None)
    follows = Follows()
    broker.replication = follows
    return follows


async def announce(served: Served, address: str) -> ExchangeHAInfoResponse:
    header = ExchangeHAInfo(master_ha_address=address, master_address="10.0.0.9:10911", master_flush_offset=1)
    reply = await ask(served.dispatcher, header)
    assert isinstance(reply.header, ExchangeHAInfoResponse)
    return reply.header


async def test_a_slave_follows_the_master_that_announces_itself(served: Served) -> None:
    follows = announced_to(served)
    answer = await announce(served, "10.0.0.9:10912")
    assert answer.follows == "" and follows.addresses == ["10.0.0.9:10912"] and follows.hastened == 1
    follows.up = True
    assert (await announce(served, "10.0.0.9:10912")).follows == "10.0.0.9:10912"


async def test_an_announcement_takes_no_slave_from_a_master_whose_link_stands(served: Served) -> None:
    follows = announced_to(served)
    follows.addresses, follows.up = ["10.0.0.9:10912"], True
    assert (await announce(served, "6.6.6.6:666")).follows == "10.0.0.9:10912"
    assert follows.addresses == ["10.0.0.9:10912"]


async def test_an_address_from_the_configuration_wins(served: Served) -> None:
    follows = announced_to(served)
    served.broker.settings.ha = HAConfig(ha_master_address="10.7.7.7:1")
    await announce(served, "10.0.0.9:10912")
    assert follows.addresses == ["10.7.7.7:1"]


@pytest.mark.parametrize(
    "address", ["", "x", "10.0.0.1", "10.0.0.1:0", "10.0.0.1:99999", "a\nb:1", ":1", "h:١"]
)
async def test_an_address_that_is_none_is_refused(served: Served, address: str) -> None:
    follows = announced_to(served)
    with pytest.raises(MQError) as error:
        await announce(served, address)
    assert error.value.code == ResponseCode.INVALID_PARAMETER and follows.addresses == []


async def test_masters_do_not_follow_anybody(served: Served) -> None:
    answer = await announce(served, "10.0.0.9:10912")
    assert answer.follows is None
