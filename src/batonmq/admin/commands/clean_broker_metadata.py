"""cleanBrokerMetadata: have the controller forget replicas."""

import click

from batonmq.admin.command import command, controller_option
from batonmq.admin.operations import replication
from batonmq.admin.output import Output
from batonmq.admin.session import Admin, AdminError


@command("cleanBrokerMetadata")
@controller_option
@click.option("-b", "--brokerControllerIdsToClean", "ids", help="Broker ids, separated by ';'; default: all.")
@click.option("-bn", "--brokerName", "name", required=True, help="Broker set.")
@click.option("-c", "--clusterName", "cluster", help="Cluster; required without -l, otherwise ignored.")
@click.option("-l", "--cleanLivingBroker", "living", is_flag=True, help="Also replicas that are alive.")
async def main(
    admin: Admin, out: Output, controller: str, ids: str | None, name: str, cluster: str | None, living: bool
) -> None:
    """Have the controllers forget a replica.

    For a broker that will not come back: it no longer counts as a member of its broker set.

    \b
      batonmq admin cleanBrokerMetadata -a 127.0.0.1:9877 -c DefaultCluster -bn broker-a -b 2
    """
    if not living and not cluster:
        raise AdminError("-c with the cluster's name is needed unless -l is given")
    if ids is not None and not all(part.strip().isdigit() for part in ids.split(";")):
        raise AdminError(f"{ids!r} is not a list of broker ids; write them as '1;2'")
    await replication.forget(admin, controller, name, cluster=cluster, broker_ids=ids, living=living)
    out.done(f"the controller forgot {ids or 'all replicas'} of {name}", broker=name, ids=ids)
