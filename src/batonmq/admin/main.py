"""`batonmq admin <command>`: mqadmin's commands, names and flags. Each lives in a file below `commands/`."""

from __future__ import annotations

import difflib
from importlib import import_module

import click

COMMANDS = {
    "addWritePerm": "add_write_perm",
    "brokerConsumeStats": "broker_consume_stats",
    "brokerStatus": "broker_status",
    "cleanBrokerMetadata": "clean_broker_metadata",
    "cleanExpiredCQ": "clean_expired_cq",
    "cleanUnusedTopic": "clean_unused_topic",
    "cloneGroupOffset": "clone_group_offset",
    "clusterList": "cluster_list",
    "consumeMessage": "consume_message",
    "consumerConnection": "consumer_connection",
    "consumerProgress": "consumer_progress",
    "deleteExpiredCommitLog": "delete_expired_commit_log",
    "deleteKvConfig": "delete_kv_config",
    "deleteSubGroup": "delete_sub_group",
    "deleteTopic": "delete_topic",
    "electMaster": "elect_master",
    "getBrokerConfig": "get_broker_config",
    "getBrokerEpoch": "get_broker_epoch",
    "getConsumerConfig": "get_consumer_config",
    "getControllerConfig": "get_controller_config",
    "getControllerMetaData": "get_controller_meta_data",
    "getNamesrvConfig": "get_namesrv_config",
    "getSyncStateSet": "get_sync_state_set",
    "haStatus": "ha_status",
    "printMsg": "print_msg",
    "producerConnection": "producer_connection",
    "queryCq": "query_cq",
    "queryMsgById": "query_msg_by_id",
    "queryMsgByKey": "query_msg_by_key",
    "queryMsgByOffset": "query_msg_by_offset",
    "queryMsgByUniqueKey": "query_msg_by_unique_key",
    "resetOffsetByTime": "reset_offset_by_time",
    "sendMessage": "send_message",
    "statsAll": "stats_all",
    "topicList": "topic_list",
    "topicRoute": "topic_route",
    "topicStatus": "topic_status",
    "updateBrokerConfig": "update_broker_config",
    "updateControllerConfig": "update_controller_config",
    "updateKvConfig": "update_kv_config",
    "updateNamesrvConfig": "update_namesrv_config",
    "updateSubGroup": "update_sub_group",
    "updateTopic": "update_topic",
    "updateTopicPerm": "update_topic_perm",
    "wipeWritePerm": "wipe_write_perm",
}
"""Command -> module below `commands/`, whose `main` it is."""


class Commands(click.Group):
    """Loads a command's module when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        module = COMMANDS.get(cmd_name)
        if module is None:
            return None
        found = import_module(f"batonmq.admin.commands.{module}").main
        assert isinstance(found, click.Command)
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            near = difflib.get_close_matches(args[0], COMMANDS, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            ctx.fail(f"no command {args[0]!r}{hint}")
        return super().resolve_command(ctx, args)


@click.command(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
def admin() -> None:
    """Administer a cluster: mqadmin's commands, for our brokers and RocketMQ's.

    \b
      batonmq admin clusterList -n 127.0.0.1:9876
      batonmq admin topicStatus -n 127.0.0.1:9876 -t orders --json
    """
