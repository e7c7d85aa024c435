"""Plans for static topics: which broker gets which logical queue. No I/O.

A plan (`TopicRemappingDetailWrapper`) says what each broker is to know of the topic. All functions raise
ValueError for a topic whose brokers contradict each other, and for what cannot be done; they change none of
their arguments. Source: `TopicQueueMappingUtils` and `MQAdminUtils` of Apache RocketMQ 5.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from msgspec.structs import replace

from batonmq.protocol.bodies.static_topics import UNKNOWN, LogicQueueMappingItem, TopicQueueMappingDetail
from batonmq.protocol.bodies.topics import TopicConfigAndQueueMapping, TopicRemappingDetailWrapper
from batonmq.routing.static_topics import check_parts, is_leader, to_logical

Configs = Mapping[str, TopicConfigAndQueueMapping]
"""Broker name -> what the broker knows of the topic."""
Parts = Mapping[int, list[LogicQueueMappingItem]]
"""Logical queue -> its parts, oldest first."""

CREATE_OR_UPDATE: Final = "CREATE_OR_UPDATE"
REMAPPING: Final = "REMAPPING"
EPOCH_STEP: Final = 1_000
"""A plan's epoch is at least so much later than the one before."""
BLOCK: Final = 10_000
"""The logic offsets of parts are multiples of it."""


# -- what brokers know


def detail_of(broker: str, config: TopicConfigAndQueueMapping) -> TopicQueueMappingDetail:
    """What a broker knows of the logical queues."""
    if config.mapping_detail is None:
        raise ValueError(
            f"topic {config.topic_name} is an ordinary topic at {broker}; a static topic needs a name that"
            " no broker uses"
        )
    return config.mapping_detail


def logical_queues_of(topic: str, configs: Configs) -> dict[int, list[LogicQueueMappingItem]]:
    """The logical queues as their leaders know them, by id. The brokers must agree."""
    if not configs:
        return {}
    agreed: tuple[str, int, int] | None = None
    for broker, config in sorted(configs.items()):
        detail = detail_of(broker, config)
        if detail.bname != broker or {config.topic_name, detail.topic} != {topic}:
            raise ValueError(f"the mapping of {broker} is one of topic {detail.topic} at {detail.bname}")
        if detail.dirty:
            raise ValueError(f"the mapping of {broker} is marked as dirty")
        terms = detail.scope, detail.epoch, detail.total_queues
        if agreed is not None and terms != agreed:
            raise ValueError(
                f"brokers do not agree on (scope, epoch, queues) of topic {topic}: {broker} says {terms}, "
                f"others {agreed}; apply the last map file again"
            )
        agreed = terms
    led = led_parts(configs)
    assert agreed is not None
    if missing := sorted(set(range(agreed[2])) - led.keys()):
        raise ValueError(
            f"none of {', '.join(sorted(configs))} leads logical queues {missing} of topic {topic}"
        )
    if len(led) > agreed[2]:
        raise ValueError(f"topic {topic} has {agreed[2]} logical queues, and brokers lead {sorted(led)}")
    _check_physical(topic, configs, led)
    return led


def led_parts(configs: Configs, *, newest: bool = False) -> dict[int, list[LogicQueueMappingItem]]:
    """The parts of the logical queues that have a leader. Of two leaders of a queue, `newest` takes the one
    with the later epoch; else there must not be two."""
    found: dict[int, list[LogicQueueMappingItem]] = {}
    details = [config.mapping_detail for config in configs.values() if config.mapping_detail is not None]
    for detail in sorted(details, key=lambda detail: -detail.epoch):
        for queue_id, items in detail.hosted_queues.items():
            check_parts(items)
            if not is_leader(items, detail.bname or ""):
                continue
            if queue_id not in found:
                found[queue_id] = list(items)
            elif not newest:
                both = f"{found[queue_id][-1].bname} and {detail.bname}"
                raise ValueError(f"logical queue {queue_id} has two leaders: {both}")
    return dict(sorted(found.items()))


def _check_physical(topic: str, configs: Configs, led: Parts) -> None:
    """Each part has a separate physical queue."""
    owners: dict[tuple[str, int], int] = {}
    for queue_id, items in led.items():
        for item in items:
            place = item.bname, item.queue_id
            if place in owners:
                both = f"{owners[place]} and {queue_id}"
                raise ValueError(f"logical queues {both} share queue {item.queue_id} of {item.bname}")
            owners[place] = queue_id
            config = configs.get(item.bname)
            if config is None:
                raise ValueError(
                    f"logical queue {queue_id} has a part at {item.bname}, which is down or does not know"
                    f" topic {topic}"
                )
            if not item.queue_id < config.write_queue_nums <= config.read_queue_nums:
                raise ValueError(
                    f"{item.bname} cannot serve queue {item.queue_id} for logical queue {queue_id}: it has"
                    f" {config.write_queue_nums} queues to write and {config.read_queue_nums} to read"
                )
            if item.start_offset:
                raise ValueError(
                    f"a part of logical queue {queue_id} begins at {item.start_offset}, not at 0"
                )


# -- plans


def create(
    topic: str, queues: int, targets: Collection[str], configs: Configs, now_ms: int
) -> TopicRemappingDetailWrapper:
    """Create a topic with so many logical queues, or add queues to one.

    New queues go to the brokers that lead the fewest: `targets`, and those that know the topic already.
    """
    known = logical_queues_of(topic, configs)
    if queues == len(known):
        raise ValueError(f"topic {topic} has {queues} logical queues already")
    if queues < len(known):
        raise ValueError(f"topic {topic} has {len(known)} logical queues, and a static topic cannot shrink")
    for queue_id, items in known.items():
        _check_decided(queue_id, items)
    epoch = _next_epoch(configs, now_ms)
    changed = _copies(configs)
    loads = Counter(items[-1].bname for items in known.values())
    brokers = sorted({*targets, *configs})
    if not brokers:
        raise ValueError(f"no broker is given for topic {topic}")
    for queue_id in range(len(known), queues):
        broker = min(brokers, key=lambda name: (loads[name], name))
        loads[broker] += 1
        place = _add_queue(changed, topic, broker)
        items = [LogicQueueMappingItem(queue_id=place, bname=broker)]
        detail_of(broker, changed[broker]).hosted_queues[queue_id] = items
    return _plan(topic, CREATE_OR_UPDATE, epoch, queues, changed)


def remap(topic: str, targets: Collection[str], configs: Configs, now_ms: int) -> TopicRemappingDetailWrapper:
    """Move logical queues so that `targets` lead all of them, the same number each within one.

    As few as possible move: no broker both gets and loses queues.
    """
    known = logical_queues_of(topic, configs)
    if not known:
        raise ValueError(f"no broker knows topic {topic}; updateStaticTopic creates it")
    if not targets:
        raise ValueError(f"no broker is given for topic {topic}")
    epoch = _next_epoch(configs, now_ms)
    changed = _copies(configs)
    gains: set[str] = set()
    losses: set[str] = set()
    for queue_id, broker in _leaders(known, targets).items():
        items = known[queue_id]
        if items[-1].bname == broker:
            continue
        _check_decided(queue_id, items)
        gains.add(broker)
        losses.add(items[-1].bname)
        place = _add_queue(changed, topic, broker)
        moved = [*items, LogicQueueMappingItem(items[-1].gen + 1, place, broker, UNKNOWN)]
        for name in (broker, items[-1].bname):
            detail_of(name, changed[name]).hosted_queues[queue_id] = moved
    return _plan(topic, REMAPPING, epoch, len(known), changed, gains, losses)


def complete(plan: TopicRemappingDetailWrapper, brokers: Iterable[str]) -> TopicRemappingDetailWrapper:
    """The plan with the other `brokers` of the cluster: they know the topic and have no queue of it."""
    queues = max(detail_of(*each).total_queues for each in plan.broker_config_map.items())
    configs = dict(plan.broker_config_map)
    for broker in brokers:
        if broker not in configs:
            configs[broker] = _without_queues(plan.topic, broker, configs)
            detail = detail_of(broker, configs[broker])
            detail.epoch, detail.total_queues = plan.epoch, queues
    return replace(plan, broker_config_map=configs)


def check(plan: TopicRemappingDetailWrapper, topic: str) -> None:
    """A plan from a file must be one for `topic`."""
    if not plan.broker_config_map:
        raise ValueError("it names no broker")
    logical_queues_of(topic, plan.broker_config_map)
    unknown = {*plan.broker_to_map_in, *plan.broker_to_map_out} - plan.broker_config_map.keys()
    if unknown:
        raise ValueError(f"it has no entry for {', '.join(sorted(unknown))}, which gains or loses queues")


# -- against what brokers know


def check_newest(plan: TopicRemappingDetailWrapper, configs: Configs) -> None:
    """No broker has carried out a part of a later plan."""
    for broker, config in sorted(configs.items()):
        known = config.mapping_detail
        if known is not None and known.epoch > plan.epoch:
            raise ValueError(
                f"{broker} has epoch {known.epoch} of topic {plan.topic}, and this plan is of epoch "
                f"{plan.epoch}: another plan was made after this one"
            )


def deposing(plan: TopicRemappingDetailWrapper, configs: Configs) -> TopicRemappingDetailWrapper:
    """The plan, which also says to brokers that lead a queue against it who leads the queue: a mapping that
    is forced upon a broker leaves the queues that it does not mention."""
    planned, copies = led_parts(plan.broker_config_map), _copies(plan.broker_config_map)
    for broker, config in configs.items():
        for queue_id in led_parts({broker: config}):
            if queue_id in planned and broker in copies:
                detail_of(broker, copies[broker]).hosted_queues.setdefault(queue_id, planned[queue_id])
    return replace(plan, broker_config_map=copies)


# -- the end of a remapping


def resumed(plan: TopicRemappingDetailWrapper, configs: Configs) -> TopicRemappingDetailWrapper:
    """The plan with the logic offsets that its new leaders know already: it was carried out before, at least
    in part. `configs`: what brokers know now."""
    decided = led_parts(configs, newest=True)
    copies = _copies(plan.broker_config_map)
    for queue_id, items in led_parts(plan.broker_config_map).items():
        leader, known = items[-1].bname, decided.get(queue_id)
        if items[-1].logic_offset >= 0 or not known or _place(known[-1]) != _place(items[-1]):
            continue
        last = replace(items[-1], logic_offset=known[-1].logic_offset)
        detail_of(leader, copies[leader]).hosted_queues[queue_id] = [*items[:-1], last]
    return replace(plan, broker_config_map=copies)


def undecided(plan: TopicRemappingDetailWrapper) -> dict[int, LogicQueueMappingItem]:
    """The logical queues that move, and the part of each that ends."""
    return {
        queue_id: items[-2]
        for queue_id, items in led_parts(plan.broker_config_map).items()
        if len(items) > 1 and items[-1].logic_offset < 0
    }


def decide(plan: TopicRemappingDetailWrapper, ends: Mapping[int, int]) -> TopicRemappingDetailWrapper:
    """The plan with logic offsets for the parts that begin. `ends`: logical queue -> the offset in the
    physical queue at which its part before ends."""
    configs = _copies(plan.broker_config_map)
    for queue_id, part in undecided(plan).items():
        if ends[queue_id] < part.start_offset:
            raise ValueError(
                f"queue {part.queue_id} of {part.bname} ends at {ends[queue_id]}, before its part of logical "
                f"queue {queue_id} begins"
            )
        items = led_parts(configs)[queue_id]
        begin = logic_offset_after(to_logical(part, ends[queue_id]))
        decided = [*items[:-1], replace(items[-1], logic_offset=begin)]
        detail_of(items[-1].bname, configs[items[-1].bname]).hosted_queues[queue_id] = decided
    return replace(plan, broker_config_map=configs)


def logic_offset_after(end: int) -> int:
    """Where a new part begins after one that ended at this logical offset: at the begin of a block, and at
    least half a block later."""
    blocks, rest = divmod(end, BLOCK)
    return (blocks + (1 if rest < BLOCK // 2 else 2)) * BLOCK


# -- helpers


def _place(part: LogicQueueMappingItem) -> tuple[int, str, int]:
    return part.gen, part.bname, part.queue_id


def _leaders(known: Parts, targets: Collection[str]) -> dict[int, str]:
    """Logical queue -> the broker that is to lead it."""
    before = Counter(items[-1].bname for items in known.values())
    share, more = divmod(len(known), len(set(targets)))
    ordered = sorted(set(targets), key=lambda name: (-before[name], name))
    room = {name: share + (number < more) for number, name in enumerate(ordered)}
    leaders: dict[int, str] = {}
    for queue_id, items in known.items():
        leader = items[-1].bname
        if room.get(leader, 0):
            room[leader] -= 1
            leaders[queue_id] = leader
    free = [name for name, number in room.items() for _ in range(number)]
    leaders.update(zip((queue_id for queue_id in known if queue_id not in leaders), free, strict=True))
    return leaders


def _check_decided(queue_id: int, items: Collection[LogicQueueMappingItem]) -> None:
    if any(item.logic_offset < 0 for item in items):
        raise ValueError(
            f"the move of logical queue {queue_id} is not finished: carry out its plan again, from its "
            "map file"
        )


def _copies(configs: Configs) -> dict[str, TopicConfigAndQueueMapping]:
    copies: dict[str, TopicConfigAndQueueMapping] = {}
    for broker, config in configs.items():
        detail = detail_of(broker, config)
        copies[broker] = replace(
            config, mapping_detail=replace(detail, hosted_queues=dict(detail.hosted_queues))
        )
    return copies


def _without_queues(topic: str, broker: str, others: Configs) -> TopicConfigAndQueueMapping:
    """A broker's first configuration of the topic, with the attributes that it has on others."""
    detail = TopicQueueMappingDetail(topic=topic, bname=broker)
    attributes = next((dict(each.attributes) for each in others.values() if each.attributes), {})
    return TopicConfigAndQueueMapping(topic, 0, 0, attributes=attributes, mapping_detail=detail)


def _add_queue(configs: dict[str, TopicConfigAndQueueMapping], topic: str, broker: str) -> int:
    """Give a broker one more physical queue; its id."""
    config = configs.setdefault(broker, _without_queues(topic, broker, configs))
    config.write_queue_nums += 1
    config.read_queue_nums += 1
    return config.write_queue_nums - 1


def _next_epoch(configs: Configs, now_ms: int) -> int:
    epochs = [detail_of(*each).epoch + EPOCH_STEP for each in configs.items()]
    return max(now_ms, *epochs, 0)


def _plan(
    topic: str,
    kind: str,
    epoch: int,
    queues: int,
    configs: dict[str, TopicConfigAndQueueMapping],
    gains: Iterable[str] = (),
    losses: Iterable[str] = (),
) -> TopicRemappingDetailWrapper:
    for broker, config in configs.items():
        detail = detail_of(broker, config)
        detail.epoch, detail.total_queues = epoch, queues
    logical_queues_of(topic, configs)
    return TopicRemappingDetailWrapper(topic, kind, epoch, configs, sorted(gains), sorted(losses))
