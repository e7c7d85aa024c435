"""`batonmq admin <command>`: mqadmin's commands, names and flags. Each lives in a file below `commands/`."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Final

import click

from batonmq.common.command_group import SuggestingGroup

SECTIONS: Final[Mapping[str, Mapping[str, str]]] = {
    "Cluster and brokers": {
        "clusterList": "cluster_list",
        "brokerStatus": "broker_status",
        "getBrokerConfig": "get_broker_config",
        "updateBrokerConfig": "update_broker_config",
        "deleteExpiredCommitLog": "delete_expired_commit_log",
        "cleanExpiredCQ": "clean_expired_cq",
        "cleanUnusedTopic": "clean_unused_topic",
        "exportConfigs": "export_configs",
        "exportMetadata": "export_metadata",
        "addBroker": "add_broker",
        "removeBroker": "remove_broker",
    },
    "Topics": {
        "topicList": "topic_list",
        "topicRoute": "topic_route",
        "topicClusterList": "topic_cluster_list",
        "topicStatus": "topic_status",
        "statsAll": "stats_all",
        "updateTopic": "update_topic",
        "updateTopicPerm": "update_topic_perm",
        "updateTopicList": "update_topic_list",
        "updateOrderConf": "update_order_conf",
        "allocateMQ": "allocate_mq",
        "updateStaticTopic": "update_static_topic",
        "remappingStaticTopic": "remapping_static_topic",
        "deleteTopic": "delete_topic",
    },
    "Consumers and producers": {
        "consumerProgress": "consumer_progress",
        "consumerConnection": "consumer_connection",
        "producerConnection": "producer_connection",
        "producer": "producer",
        "brokerConsumeStats": "broker_consume_stats",
        "getConsumerConfig": "get_consumer_config",
        "updateSubGroup": "update_sub_group",
        "updateSubGroupList": "update_sub_group_list",
        "deleteSubGroup": "delete_sub_group",
        "consumerStatus": "consumer_status",
        "getConsumerStatus": "get_consumer_status",
        "setConsumeMode": "set_consume_mode",
        "resetOffsetByTime": "reset_offset_by_time",
        "resetOffsetByTimeOld": "reset_offset_by_time_old",
        "skipAccumulatedMessage": "skip_accumulated_message",
        "cloneGroupOffset": "clone_group_offset",
    },
    "Messages": {
        "sendMessage": "send_message",
        "consumeMessage": "consume_message",
        "printMsg": "print_msg",
        "printMsgByQueue": "print_msg_by_queue",
        "queryMsgById": "query_msg_by_id",
        "queryMsgByKey": "query_msg_by_key",
        "queryMsgByOffset": "query_msg_by_offset",
        "queryMsgByUniqueKey": "query_msg_by_unique_key",
        "queryCq": "query_cq",
        "queryMsgTraceById": "query_msg_trace_by_id",
        "sendMsgStatus": "send_msg_status",
        "checkMsgSendRT": "check_msg_send_rt",
        "resumeCheckHalfMessage": "resume_check_half_message",
    },
    "Replication and controllers": {
        "getSyncStateSet": "get_sync_state_set",
        "haStatus": "ha_status",
        "resetMasterFlushOffset": "reset_master_flush_offset",
        "getBrokerEpoch": "get_broker_epoch",
        "electMaster": "elect_master",
        "cleanBrokerMetadata": "clean_broker_metadata",
        "getControllerMetaData": "get_controller_meta_data",
        "getControllerConfig": "get_controller_config",
        "updateControllerConfig": "update_controller_config",
        "moveControllers": "move_controllers",
    },
    "Members of the controllers' Raft group": {
        "getControllerMembers": "get_controller_members",
        "addController": "add_controller",
        "removeController": "remove_controller",
        "replaceController": "replace_controller",
        "transferControllerLeader": "transfer_controller_leader",
    },
    "Users and rights": {
        "createUser": "create_user",
        "updateUser": "update_user",
        "deleteUser": "delete_user",
        "getUser": "get_user",
        "listUser": "list_user",
        "copyUser": "copy_user",
        "createAcl": "create_acl",
        "updateAcl": "update_acl",
        "deleteAcl": "delete_acl",
        "getAcl": "get_acl",
        "listAcl": "list_acl",
        "copyAcl": "copy_acl",
    },
    "Name servers": {
        "getNamesrvConfig": "get_namesrv_config",
        "updateNamesrvConfig": "update_namesrv_config",
        "updateKvConfig": "update_kv_config",
        "deleteKvConfig": "delete_kv_config",
        "wipeWritePerm": "wipe_write_perm",
        "addWritePerm": "add_write_perm",
    },
}
"""Section of the list -> command -> module below `commands/`, whose `main` it is."""
COMMANDS: Final = {name: module for section in SECTIONS.values() for name, module in section.items()}


class Commands(SuggestingGroup):
    """Loads a command's module when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, names in SECTIONS.items():
            with formatter.section(title):
                limit = formatter.width - 6 - max(map(len, COMMANDS))
                commands = ((name, self.get_command(ctx, name)) for name in names)
                formatter.write_dl(
                    [(name, command.get_short_help_str(limit)) for name, command in commands if command]
                )

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        module = COMMANDS.get(cmd_name)
        if module is None:
            return None
        found = import_module(f"batonmq.admin.commands.{module}").main
        assert isinstance(found, click.Command)
        return found


@click.command(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
def admin() -> None:
    """Look at a cluster and change it: mqadmin's commands, for our brokers and RocketMQ's.

    Most commands ask a name server (-n) where the brokers are; those about controllers take -a with the
    controllers' addresses. 'batonmq admin COMMAND --help' says what a command takes.

    \b
      export NAMESRV_ADDR=127.0.0.1:9876      instead of -n with every command
      batonmq admin clusterList               is everything up?
      batonmq admin topicStatus -t orders     what is in a topic?
      batonmq admin consumerProgress          is anybody behind?
      batonmq admin clusterList --json        the same for scripts

    \b
    Where programs speak TLS only:
      batonmq admin clusterList --tls-trust ca.pem --tls-cert me.pem --tls-key me.key
      export BATONMQ_TLS_CONFIG=tls.conf      or by mqadmin's tls.config.file

    \b
    Where brokers know users:
      export BATONMQ_CREDENTIALS=tools.yml    mqadmin's file, with accessKey and secretKey
    """
