"""Static topics: creating and growing them, moving their logical queues, what their brokers know."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from batonmq.admin import static_plans
from batonmq.admin.session import Admin, AdminError
from batonmq.protocol.bodies.common import MessageQueue
from batonmq.protocol.bodies.statistics import TopicStatsTable
from batonmq.protocol.bodies.topics import TopicConfigAndQueueMapping, TopicRemappingDetailWrapper
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.broker.admin import GetTopicStatsInfo
from batonmq.protocol.headers.broker.topics import CreateStaticTopic, GetTopicConfig
from batonmq.protocol.json import BodyError, decode, encode
from batonmq.protocol.names import AUTO_CREATE_TOPIC


async def brokers_of(admin: Admin, brokers: str | None, clusters: str | None) -> list[str]:
    """Names of the broker sets that -b or -c mean, comma separated. Raises `AdminError` for unknown ones."""
    if not brokers and not clusters:
        raise AdminError("give -b with names of brokers or -c with names of clusters, comma separated")
    if brokers:
        names = {name.strip() for name in brokers.split(",")} - {""}
    else:
        named = [name.strip() for name in (clusters or "").split(",") if name.strip()]
        names = {group.broker_name for name in named for group in await admin.groups(name)}
    masters = await admin.masters()
    if not names <= masters.keys():
        raise AdminError(
            f"no master of {', '.join(sorted(names - masters.keys()))}; the name server knows masters of: "
            f"{', '.join(sorted(masters)) or 'none'}"
        )
    return sorted(names)


async def plan_queues(
    admin: Admin, topic: str, queues: int, targets: Collection[str]
) -> tuple[TopicRemappingDetailWrapper, TopicRemappingDetailWrapper]:
    """What brokers know of a topic, and the plan to give it so many logical queues."""
    before = await known(admin, topic)
    try:
        plan = static_plans.create(topic, queues, targets, before.broker_config_map, _now_ms())
    except ValueError as error:
        raise AdminError(str(error)) from None
    return before, plan


async def plan_remapping(
    admin: Admin, topic: str, targets: Collection[str]
) -> tuple[TopicRemappingDetailWrapper, TopicRemappingDetailWrapper]:
    """What brokers know of a topic, and the plan to have `targets` lead its logical queues."""
    before = await known(admin, topic)
    try:
        plan = static_plans.remap(topic, targets, before.broker_config_map, _now_ms())
    except ValueError as error:
        raise AdminError(str(error)) from None
    return before, plan


async def known(admin: Admin, topic: str) -> TopicRemappingDetailWrapper:
    """What the brokers of all clusters know of a topic, as a plan that changes nothing.

    Raises `AdminError` while a broker set has no master: it may lead queues.
    """
    found: dict[str, TopicConfigAndQueueMapping] = {}
    masters = await admin.masters()
    for group in await admin.groups():
        if group.broker_name not in masters:
            raise AdminError(f"broker {group.broker_name} has no master, and may have logical queues")
    for name, address in sorted(masters.items()):
        config = await _config(admin, address, topic)
        if config is not None:
            found[name] = config
    epochs = [config.mapping_detail.epoch for config in found.values() if config.mapping_detail]
    epoch = max(epochs, default=_now_ms())
    return TopicRemappingDetailWrapper(topic, static_plans.CREATE_OR_UPDATE, epoch, found)


async def update(admin: Admin, plan: TopicRemappingDetailWrapper, *, force: bool = False) -> None:
    """Carry out a plan that adds queues.

    Brokers get it one after the other. After a failure it can be carried out again, from its file.
    """
    plan, _ = await _prepared(admin, plan, force)
    await _send(admin, plan, sorted(plan.broker_config_map), force)


async def remap(admin: Admin, plan: TopicRemappingDetailWrapper, *, force: bool = False) -> None:
    """Carry out a plan that moves queues. After a failure it can be carried out again, from its file."""
    plan, known = await _prepared(admin, plan, force)
    gaining, losing = set(plan.broker_to_map_in), set(plan.broker_to_map_out)
    try:
        plan = static_plans.resumed(plan, {name: known[name] for name in gaining & known.keys()})
        # New leaders take messages, which have no logical offset yet, before the old ones refuse them. Where
        # the old parts end, and so where the new ones begin, is known only then.
        await _send(admin, plan, sorted(gaining), force)
        settled = await _send(admin, plan, sorted(losing), force)
        plan = static_plans.decide(plan, await _ends(admin, plan, settled))
    except ValueError as error:
        raise AdminError(str(error)) from None
    await _send(admin, plan, sorted(gaining), force)
    others = plan.broker_config_map.keys() - gaining - losing
    await _send(admin, plan, sorted(others), force)


# -- map files


def write_map(plan: TopicRemappingDetailWrapper, suffix: str) -> Path:
    """Write a plan where mqadmin does, into the folder for temporary files; the path."""
    path = Path(tempfile.gettempdir()) / f"{plan.topic}-{plan.epoch}.{suffix}"
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o644)
        with os.fdopen(handle, "wb") as file:
            file.write(encode(plan))
    except OSError as error:
        raise AdminError(f"{path} cannot be written: {error.strerror}") from None
    return path


def read_map(path: Path, topic: str) -> TopicRemappingDetailWrapper:
    """The plan of a map file, mqadmin's or ours. Raises `AdminError` if it is none for `topic`."""
    try:
        plan = decode(path.read_bytes(), TopicRemappingDetailWrapper)
        static_plans.check(plan, topic)
    except OSError as error:
        raise AdminError(f"{path} cannot be read: {error.strerror}") from None
    except BodyError as error:
        raise AdminError(f"{path} is not a map file: {error.remark}") from None
    except ValueError as error:
        raise AdminError(f"{path} is not a map file of topic {topic}: {error}") from None
    return plan


# -- logical queues


def leaders(plan: TopicRemappingDetailWrapper) -> dict[int, str]:
    """Logical queue -> name of the broker that leads it after a plan."""
    return {
        queue_id: items[-1].bname
        for queue_id, items in static_plans.led_parts(plan.broker_config_map).items()
    }


async def logical_parts(admin: Admin, topic: str) -> static_plans.Parts | None:
    """The parts of a topic's logical queues; None for an ordinary topic."""
    route = await admin.route(topic)
    if not route.topic_queue_mapping_by_broker:
        return None
    configs: dict[str, TopicConfigAndQueueMapping] = {}
    for name, address in (await admin.masters_of_topic(topic)).items():
        config = await _config(admin, address, topic)
        if config is not None:
            configs[name] = config
    try:
        return static_plans.led_parts(configs, newest=True)
    except ValueError as error:
        raise AdminError(f"the mapping of topic {topic}: {error}") from None


# -- requests


async def _config(admin: Admin, address: str, topic: str) -> TopicConfigAndQueueMapping | None:
    try:
        answer = await admin.ask(address, GetTopicConfig(topic=topic, lo=True))
    except MQError as error:
        if error.code != ResponseCode.TOPIC_NOT_EXIST:
            raise
        return None
    return decode(bytes(answer.body), TopicConfigAndQueueMapping)


async def _prepared(
    admin: Admin, plan: TopicRemappingDetailWrapper, force: bool
) -> tuple[TopicRemappingDetailWrapper, dict[str, TopicConfigAndQueueMapping]]:
    """The plan for all brokers of its clusters, and what they know now. Raises `AdminError` if one has no
    master, or has a part of a later plan."""
    plan = await _completed(admin, plan)
    known: dict[str, TopicConfigAndQueueMapping] = {}
    for name in sorted(plan.broker_config_map):
        config = await _config(admin, await _master(admin, name), plan.topic)
        if config is not None:
            known[name] = config
    try:
        if force:
            return static_plans.deposing(plan, known), known
        static_plans.check_newest(plan, known)
    except ValueError as error:
        raise AdminError(str(error)) from None
    return plan, known


async def _completed(admin: Admin, plan: TopicRemappingDetailWrapper) -> TopicRemappingDetailWrapper:
    """The plan with the other brokers of its clusters. Raises `AdminError` if one has no master."""
    info = await admin.cluster()
    names = {
        name
        for members in info.cluster_addr_table.values()
        if plan.broker_config_map.keys() & set(members)
        for name in members
    }
    plan = static_plans.complete(plan, sorted(names))
    missing = plan.broker_config_map.keys() - (await admin.masters()).keys()
    if missing:
        raise AdminError(f"no master of {', '.join(sorted(missing))}; nothing was changed")
    return plan


async def _master(admin: Admin, broker: str) -> str:
    """Address of the broker set's master at this moment: it may change between the steps of a plan."""
    address = (await admin.masters()).get(broker)
    if address is None:
        raise AdminError(f"{broker} no longer has a master; carry out the plan again, from its file")
    return address


async def _send(
    admin: Admin, plan: TopicRemappingDetailWrapper, brokers: Iterable[str], force: bool
) -> dict[str, str]:
    """Send these brokers their mappings. Returns the addresses of the masters that have taken them."""
    sent: dict[str, str] = {}
    for name in brokers:
        config = plan.broker_config_map[name]
        header = CreateStaticTopic(
            topic=plan.topic,
            default_topic=AUTO_CREATE_TOPIC,
            read_queue_nums=config.read_queue_nums,
            write_queue_nums=config.write_queue_nums,
            perm=config.perm,
            topic_filter_type=config.topic_filter_type,
            topic_sys_flag=config.topic_sys_flag,
            order=config.order,
            attributes=",".join(f"+{key}={value}" for key, value in (config.attributes or {}).items()),
            force=force,
        )
        body = encode(static_plans.detail_of(name, config))
        sent[name] = await _master(admin, name)
        await admin.ask(sent[name], header, body)
    return sent


async def _ends(
    admin: Admin, plan: TopicRemappingDetailWrapper, settled: Mapping[str, str]
) -> dict[int, int]:
    """Where the parts end that no longer take messages: logical queue -> offset in the physical queue.

    The masters in `settled` say so themselves: one that was elected since shows a lower end for a while.
    """
    ending = static_plans.undecided(plan)
    ends: dict[int, int] = {}
    for name in sorted({part.bname for part in ending.values()}):
        address = settled.get(name) or await _master(admin, name)
        answer = await admin.ask(address, GetTopicStatsInfo(topic=plan.topic))
        table = decode(bytes(answer.body), TopicStatsTable).offset_table
        for queue_id, part in ending.items():
            if part.bname == name:
                at = table.get(MessageQueue(plan.topic, name, part.queue_id))
                if at is None:
                    raise AdminError(f"{name} does not say where its queue {part.queue_id} ends")
                ends[queue_id] = at.max_offset
    return ends


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
