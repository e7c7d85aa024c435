"""The requests that a name server answers: one function each, bound to their codes by `register`.

Functions take the `NameServer` they work on, the request and its header. Response codes and remarks are those
of Apache RocketMQ's `DefaultRequestProcessor` and `ClientRequestProcessor`.
"""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from batonmq.common.config import ConfigError, changeable_keys, did_you_mean, keys_of, parse_properties
from batonmq.common.config_file import change_file
from batonmq.common.config_loader import update
from batonmq.common.config_values import to_properties
from batonmq.common.running_time import RunningTime
from batonmq.namesrv.config import NamesrvConfig
from batonmq.namesrv.kv import KVConfig
from batonmq.namesrv.routes import BrokerKey, Notice, RouteTable, in_zone
from batonmq.net.dispatch import Dispatcher, Reply, Request
from batonmq.protocol.bodies.common import DataVersion, KVTable, TopicList
from batonmq.protocol.bodies.routes import GetBrokerMemberGroupResponseBody, TopicRouteData
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import FAQ, MQError
from batonmq.protocol.headers import namesrv as wire
from batonmq.protocol.headers.namesrv import ZONE_MODE, ZONE_NAME
from batonmq.protocol.json import decode_request, encode
from batonmq.protocol.names import ORDER_TOPIC_CONFIG
from batonmq.protocol.register_body import decode_register_body

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class NameServer:
    """The parts of one name server that its handlers use."""

    config: NamesrvConfig
    routes: RouteTable
    kv: KVConfig
    running: RunningTime
    """A broker is silent by this time: a name server that could not run must not count its own pause."""
    notify: Callable[[list[Notice]], None]
    """Sends notices to brokers, without waiting."""
    scan_by: Callable[[int], None]
    """Checks for silent brokers at this time (`running`) or earlier."""
    started_ms: int
    """`running` at the start."""
    reconfigured: Callable[[], None]
    """The configuration was replaced."""
    writing: asyncio.Lock
    """Held while the configuration file is changed."""


def register(dispatcher: Dispatcher, server: NameServer) -> None:
    """Bind every request of a name server."""
    on = dispatcher.on
    on(wire.PutKVConfig, partial(put_kv_config, server))
    on(wire.GetKVConfig, partial(get_kv_config, server))
    on(wire.DeleteKVConfig, partial(delete_kv_config, server))
    on(wire.GetKVListByNamespace, partial(get_kv_list, server))
    on(wire.RegisterBroker, partial(register_broker, server))
    on(wire.UnregisterBroker, partial(unregister_broker, server))
    on(wire.BrokerHeartbeat, partial(broker_heartbeat, server))
    on(wire.QueryDataVersion, partial(query_data_version, server))
    on(wire.GetBrokerMemberGroup, partial(get_broker_member_group, server))
    on(wire.GetBrokerClusterInfo, partial(get_broker_cluster_info, server))
    on(wire.WipeWritePermOfBroker, partial(wipe_write_perm, server))
    on(wire.AddWritePermOfBroker, partial(add_write_perm, server))
    on(wire.GetRouteInfo, partial(get_route_info, server))
    on(wire.GetAllTopicList, partial(get_all_topic_list, server))
    on(wire.GetTopicsByCluster, partial(get_topics_by_cluster, server))
    on(wire.GetSystemTopicListFromNs, partial(get_system_topic_list, server))
    on(wire.GetUnitTopicList, partial(get_unit_topic_list, server))
    on(wire.GetHasUnitSubTopicList, partial(get_unit_sub_topic_list, server))
    on(wire.GetHasUnitSubUnunitTopicList, partial(get_unit_sub_ununit_topic_list, server))
    on(wire.RegisterTopicInNamesrv, partial(register_topic, server))
    on(wire.DeleteTopicInNamesrv, partial(delete_topic, server))
    on(wire.UpdateNamesrvConfig, partial(update_config, server))
    on(wire.GetNamesrvConfig, partial(get_config, server))


# Key-value configuration


async def put_kv_config(server: NameServer, request: Request, header: wire.PutKVConfig) -> Reply:
    await server.kv.put(header.namespace, header.key, header.value)
    return Reply()


def get_kv_config(server: NameServer, request: Request, header: wire.GetKVConfig) -> Reply:
    value = server.kv.get(header.namespace, header.key)
    if value is None:
        raise MQError(
            ResponseCode.QUERY_NOT_FOUND,
            f"No config item, Namespace: {header.namespace} Key: {header.key}",
        )
    return Reply(wire.GetKVConfigResponse(value))


async def delete_kv_config(server: NameServer, request: Request, header: wire.DeleteKVConfig) -> Reply:
    await server.kv.delete(header.namespace, header.key)
    return Reply()


def get_kv_list(server: NameServer, request: Request, header: wire.GetKVListByNamespace) -> Reply:
    values = server.kv.list(header.namespace)
    if values is None:
        raise MQError(ResponseCode.QUERY_NOT_FOUND, f"No config item, Namespace: {header.namespace}")
    return Reply(body=encode(KVTable(values)))


# Brokers


def register_broker(server: NameServer, request: Request, header: wire.RegisterBroker) -> Reply:
    command = request.command
    if header.body_crc32 and zlib.crc32(command.body) & 0x7FFF_FFFF != header.body_crc32:
        raise MQError(ResponseCode.SYSTEM_ERROR, "crc32 not match")
    body = decode_register_body(command.body, compressed=header.compressed, version=command.version)
    result = server.routes.register(
        header, body, request.connection, server.running.now_ms(), zone=command.ext.get(ZONE_NAME)
    )
    if result.expires_ms is not None:
        server.scan_by(result.expires_ms)
    if result.notice is not None:
        server.notify([result.notice])
    order_topics: dict[str, str] | None = None
    if server.config.return_order_topic_config_to_broker:
        order_topics = server.kv.list(ORDER_TOPIC_CONFIG)
    return Reply(
        wire.RegisterBrokerResponse(result.ha_address, result.master_address),
        b"" if order_topics is None else encode(KVTable(order_topics)),
    )


def unregister_broker(server: NameServer, request: Request, header: wire.UnregisterBroker) -> Reply:
    server.notify(server.routes.unregister([header]))
    return Reply()


def broker_heartbeat(server: NameServer, request: Request, header: wire.BrokerHeartbeat) -> Reply:
    server.routes.seen(header.cluster_name, header.broker_addr, server.running.now_ms())
    return Reply()


def query_data_version(server: NameServer, request: Request, header: wire.QueryDataVersion) -> Reply:
    key = BrokerKey(header.cluster_name, header.broker_addr)
    changed = server.routes.data_version_changed(key, decode_request(request.command.body, DataVersion))
    server.routes.seen(key.cluster, key.address, server.running.now_ms())
    known = server.routes.data_version(key)
    return Reply(wire.QueryDataVersionResponse(changed), b"" if known is None else encode(known))


def get_broker_member_group(server: NameServer, request: Request, header: wire.GetBrokerMemberGroup) -> Reply:
    group = server.routes.member_group(header.cluster_name, header.broker_name)
    return Reply(body=encode(GetBrokerMemberGroupResponseBody(group)))


def get_broker_cluster_info(server: NameServer, request: Request, header: wire.GetBrokerClusterInfo) -> Reply:
    return Reply(body=encode(server.routes.cluster_info()))


def wipe_write_perm(server: NameServer, request: Request, header: wire.WipeWritePermOfBroker) -> Reply:
    count = server.routes.set_writable(header.broker_name, False)
    log.info("%s removed the write permission of %s: %d topics", request.connection.peer, header, count)
    return Reply(wire.WipeWritePermOfBrokerResponse(count))


def add_write_perm(server: NameServer, request: Request, header: wire.AddWritePermOfBroker) -> Reply:
    count = server.routes.set_writable(header.broker_name, True)
    log.info("%s granted the write permission of %s: %d topics", request.connection.peer, header, count)
    return Reply(wire.AddWritePermOfBrokerResponse(count))


# Topics


def get_route_info(server: NameServer, request: Request, header: wire.GetRouteInfo) -> Reply:
    # Standard JSON for every client: those that did not ask for it (acceptStandardJsonOnly, or a release from
    # 4.9.4 on) read it as well.
    config = server.config
    if config.need_wait_for_service:
        ready_ms = server.started_ms + config.wait_seconds_for_service * 1000
        if server.running.now_ms() < ready_ms:
            raise MQError(ResponseCode.SYSTEM_ERROR, "name server not ready")
    route = server.routes.route(header.topic)
    if route is None:
        raise MQError(
            ResponseCode.TOPIC_NOT_EXIST,
            f"No topic route info in name server for the topic: {header.topic}{FAQ}",
        )
    if config.order_message_enable:
        route.order_topic_conf = server.kv.get(ORDER_TOPIC_CONFIG, header.topic)
    ext = request.command.ext
    zone = ext.get(ZONE_NAME, "").strip()
    if zone and ext.get(ZONE_MODE, "").lower() == "true":
        route = in_zone(route, zone)
    return Reply(body=encode(route))


def _enabled(enabled: bool) -> None:
    if not enabled:
        raise MQError(ResponseCode.SYSTEM_ERROR, "disable")


def get_all_topic_list(server: NameServer, request: Request, header: wire.GetAllTopicList) -> Reply:
    _enabled(server.config.enable_all_topic_list)
    return Reply(body=encode(TopicList(server.routes.topics())))


def get_topics_by_cluster(server: NameServer, request: Request, header: wire.GetTopicsByCluster) -> Reply:
    _enabled(server.config.enable_topic_list)
    return Reply(body=encode(TopicList(server.routes.topics_of_cluster(header.cluster))))


def get_system_topic_list(
    server: NameServer, request: Request, header: wire.GetSystemTopicListFromNs
) -> Reply:
    return Reply(body=encode(TopicList(*server.routes.system_topics())))


def get_unit_topic_list(server: NameServer, request: Request, header: wire.GetUnitTopicList) -> Reply:
    _enabled(server.config.enable_topic_list)
    return Reply(body=encode(TopicList(server.routes.unit_topics())))


def get_unit_sub_topic_list(
    server: NameServer, request: Request, header: wire.GetHasUnitSubTopicList
) -> Reply:
    _enabled(server.config.enable_topic_list)
    return Reply(body=encode(TopicList(server.routes.unit_subscribed_topics())))


def get_unit_sub_ununit_topic_list(
    server: NameServer, request: Request, header: wire.GetHasUnitSubUnunitTopicList
) -> Reply:
    _enabled(server.config.enable_topic_list)
    return Reply(body=encode(TopicList(server.routes.unit_subscribed_topics(without_unit=True))))


def register_topic(server: NameServer, request: Request, header: wire.RegisterTopicInNamesrv) -> Reply:
    if request.command.body:
        route = decode_request(request.command.body, TopicRouteData)
        server.routes.register_topic(header.topic, route.queue_datas)
    return Reply()


def delete_topic(server: NameServer, request: Request, header: wire.DeleteTopicInNamesrv) -> Reply:
    server.routes.delete_topic(header.topic, header.cluster_name)
    return Reply()


# The name server's own configuration


async def update_config(server: NameServer, request: Request, header: wire.UpdateNamesrvConfig) -> Reply:
    """Change keys now and in the file, so that they survive a restart; all of them or none."""
    try:
        text = bytes(request.command.body).decode()
        changes = parse_properties(text)
        if not server.config.protected_keys.isdisjoint(changes):
            raise MQError(ResponseCode.NO_PERMISSION, "Can not update config in black list.")
        async with server.writing:
            changed = update(server.config, changes, source="updateNamesrvConfig")
            _check_changeable(changes)
            if changed != server.config:
                path = Path(server.config.config_store_path)
                await asyncio.get_running_loop().run_in_executor(None, change_file, path, changes)
                server.config = changed
                server.reconfigured()
    except (ConfigError, UnicodeDecodeError) as error:
        raise MQError(ResponseCode.SYSTEM_ERROR, str(error)) from error
    except OSError as error:
        raise MQError(ResponseCode.SYSTEM_ERROR, f"configStorePath cannot be written: {error}") from error
    log.info("%s changed the configuration: %s", request.connection.peer, changes)
    return Reply()


def _check_changeable(keys: Iterable[str]) -> None:
    """Raises MQError for a key that takes effect at start only: its new value would be shown, but not be in
    force. Also for a key of another program: a controller that shares the file has updateControllerConfig."""
    known, changeable = keys_of((NamesrvConfig,)), changeable_keys(NamesrvConfig)
    for key in keys:
        if key not in known:
            raise MQError(ResponseCode.SYSTEM_ERROR, f"unknown key {key}{did_you_mean(key, known)}")
        if key not in changeable:
            raise MQError(
                ResponseCode.NO_PERMISSION, f"{key} takes effect at start only; edit the file and restart"
            )


def get_config(server: NameServer, request: Request, header: wire.GetNamesrvConfig) -> Reply:
    return Reply(body=to_properties(server.config).encode())
