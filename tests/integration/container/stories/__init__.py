"""What RocketMQ's own tests of containers and acting masters check, over the wire.

The source is `org.apache.rocketmq.test.container` (5.5.0), whose tests run nine brokers in one JVM. Here each
container is a process, and the same story runs on ours and on RocketMQ's. A story leaves the nine brokers
whole. Its topic, one queue at each master unless it says otherwise, exists beforehand: a Java slave copies
topics once a minute.
"""

from tests.integration.container.stories import (  # each adds its stories
    membership,
    pops,
    returning,
    scheduled,
    slaves,
    transactions,
)
from tests.integration.container.stories.story import STORIES, Story

__all__ = ["STORIES", "Story", "membership", "pops", "returning", "scheduled", "slaves", "transactions"]
