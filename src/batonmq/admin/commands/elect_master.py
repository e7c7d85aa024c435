"""electMaster: make a replica the master of its broker set."""

import click

from batonmq.admin.command import command, controller_option
from batonmq.admin.operations import replication
from batonmq.admin.output import Output
from batonmq.admin.session import Admin


@command("electMaster")
@controller_option
@click.option("-b", "--brokerId", "broker_id", type=int, required=True, help="Id of the replica.")
@click.option("-bn", "--brokerName", "name", required=True, help="Broker set.")
@click.option("-c", "--clusterName", "cluster", required=True, help="Cluster; ignored.")
async def main(admin: Admin, out: Output, controller: str, broker_id: int, name: str, cluster: str) -> None:
    """Make a replica the master of its broker set.

    Refused unless it is alive and in the SyncStateSet. getSyncStateSet shows the ids; clusterList shows other
    ones (0 for the master). As with RocketMQ's controllers, -bn alone says which broker set it is.

    \b
      batonmq admin electMaster -a 127.0.0.1:9877 -c DefaultCluster -bn broker-a -b 2
    """
    elected = await replication.elect(admin, controller, cluster, name, broker_id)
    out.facts(
        {
            "ClusterName": cluster,
            "BrokerName": name,
            "BrokerMasterId": elected.master_broker_id,
            "BrokerMasterAddr": elected.master_address,
            "BrokerMasterEpoch": elected.master_epoch,
            "SyncStateSetEpoch": elected.sync_state_set_epoch,
        }
    )
