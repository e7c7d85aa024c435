"""Source and sink on brokers that want signed requests, and that plans show no secret."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException

from batonmq import Admin, Credentials
from batonmq.demo.cluster import LocalCluster

from .conftest import ClusterOf, values, whole_group

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

USER = {"accessKey": "root", "secretKey": "root-secret"}
AUTH = {
    "authenticationEnabled": "true",
    "authorizationEnabled": "true",
    "initAuthenticationUser": '{"username":"root","password":"root-secret"}',
    "innerClientAuthenticationCredentials": '{"accessKey":"inner","secretKey":"inner-secret"}',
}


async def ready(cluster: LocalCluster) -> None:
    await whole_group(cluster)
    async with Admin(cluster.namesrv_address, credentials=Credentials("root", "root-secret")) as admin:
        await admin.create_topic("orders", 2)


def test_source_and_sink_sign_their_requests(session: SparkSession, cluster_of: ClusterOf) -> None:
    cluster = cluster_of(**AUTH)
    asyncio.run(ready(cluster))
    where = {"namesrvAddr": cluster.namesrv_address}
    rows = session.createDataFrame([(f"m{i}",) for i in range(20)], "value string")
    rows.write.format("rocketmq").options(**where, topic="orders", **USER).mode("append").save()

    frame = session.read.format("rocketmq").options(**where, subscribe="orders", **USER).load()
    assert sorted(values(frame)) == sorted(f"m{i}".encode() for i in range(20))
    assert "root-secret" not in frame._jdf.queryExecution().toString()

    wrong = {**USER, "secretKey": "hidden9"}
    for user in ({}, wrong):
        options = {**where, **user}
        reader = session.read.format("rocketmq").options(**options, subscribe="orders", pollTimeoutMs=3000)
        with pytest.raises(PySparkException, match="NO_PERMISSION") as caught:
            reader.load().collect()
        assert "hidden9" not in str(caught.value)
        writer = rows.write.format("rocketmq").options(**options, topic="orders", sendTimeoutMs=3000)
        with pytest.raises(PySparkException, match="NO_PERMISSION") as caught:
            writer.mode("append").save()
        assert "hidden9" not in str(caught.value)
