"""Stories of `acting.py` with one more topic, which the other broker set does not have.

A producer sends timed messages to it. No master takes them from an acting slave: they wait beside its wheel,
and their own master delivers them when it returns. Invariants, besides those of `acting.py`:

- once the faults stop, every acknowledged one is delivered, and none came early;
- no broker delivers one twice, whatever was killed: each has a `UNIQ_KEY`. A producer without an answer sends
  a message again, which is another one to the broker.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from batonmq.broker.timer.part import TimerPart
from batonmq.protocol.headers.broker.topics import CreateTopic
from batonmq.protocol.message.record import MessageExt, decode_records
from batonmq.protocol.names import AUTO_CREATE_TOPIC, TIMER_TOPIC
from tests.simulation.acting import QUEUES, ActingCluster, ActingScenario, ActingStory, run
from tests.simulation.cluster import BROKER_PORT
from tests.simulation.story import FAULTS_S, Violation
from tests.simulation.timers import check_time

LONELY = "lonely"


class LonelyScenario(ActingScenario):
    """See `ActingScenario`."""

    def __init__(self, cluster: ActingCluster, story: ActingStory, faults_s: float) -> None:
        super().__init__(cluster, story, faults_s)
        self._lonely: set[str] = set()
        """Acknowledged messages of the topic."""

    async def _create_topic(self) -> None:
        await super()._create_topic()
        header = CreateTopic(
            topic=LONELY,
            default_topic=AUTO_CREATE_TOPIC,
            read_queue_nums=QUEUES,
            write_queue_nums=QUEUES,
            perm=6,
            topic_filter_type="SINGLE_TAG",
            topic_sys_flag=0,
            order=False,
        )
        session = self.cluster._session()
        try:
            await session.net.call(f"{self.cluster.pair('a')[0].address}:{BROKER_PORT}", header)
        finally:
            await session.close()
        self.cluster.on(self.cluster.client_host, self._send(self._timed, self._lonely, LONELY))

    def _timed(self) -> dict[str, str]:
        while "DELAY" in (properties := self._later()):
            pass
        return properties

    def _look(self) -> None:
        super()._look()
        slave = self.cluster.pair("a")[1]
        if self.cluster.acting(slave):
            waiting = slave.service.part(TimerPart).state.open.values()
            self.story.waited = max(self.story.waited, sum(map(len, waiting)))

    def _all_delivered(self) -> bool:
        if not super()._all_delivered():
            return False
        delivered, timed = set(), Counter[str]()
        for queue in range(QUEUES):
            for record in self._records(LONELY, queue):
                check_time(record)
                delivered.add(record.properties["KEYS"])
                timed[record.properties["KEYS"]] += "TIMER_DEQUEUE_MS" in record.properties
        sent = Counter(
            record.properties["KEYS"]
            for record in self._records(TIMER_TOPIC, 0)
            if record.properties["REAL_TOPIC"] == LONELY and "TIMER_ROLL_TIMES" not in record.properties
        )
        if twice := sorted((timed - sent).keys()):
            raise Violation(f"{len(twice)} messages were delivered more often than sent: {twice[:5]}")
        return self._lonely <= delivered

    def _records(self, topic: str, queue_id: int) -> Iterator[MessageExt]:
        """All messages in a queue of the first master."""
        store = self.cluster.pair("a")[0].broker.store
        offset = store.queue_bounds(topic, queue_id).min_offset
        while (result := store.get(topic, queue_id, offset, 32)).buffers:
            for view in result.buffers:
                yield from decode_records(view)
            offset = result.next_offset


def run_lonely(seed: int, faults_s: float = FAULTS_S) -> ActingStory:
    """As `acting.run`."""
    return run(seed, faults_s, LonelyScenario)
