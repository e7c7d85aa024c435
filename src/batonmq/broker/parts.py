"""The parts of a broker: the one list that a feature is added to.

They start in this order and stop in the reverse one. A part may rely on those before it when it starts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from batonmq.broker.acting.part import ActingPart
from batonmq.broker.admin.part import AdminPart
from batonmq.broker.auth.part import AuthPart
from batonmq.broker.delay.part import DelayPart
from batonmq.broker.escape.part import EscapePart
from batonmq.broker.locks.part import LocksPart
from batonmq.broker.messages.part import MessagesPart
from batonmq.broker.monitoring.part import MonitoringPart
from batonmq.broker.nameservers.part import NameServersPart
from batonmq.broker.pop.part import PopPart
from batonmq.broker.preonline.part import PreOnlinePart
from batonmq.broker.replica.part import ReplicaPart
from batonmq.broker.statictopic.part import StaticTopicPart
from batonmq.broker.tables.part import TablesPart
from batonmq.broker.timer.part import TimerPart
from batonmq.broker.transaction.part import TransactionPart
from batonmq.broker.upkeep.part import UpkeepPart

if TYPE_CHECKING:
    from batonmq.broker.part import Part
    from batonmq.common.metrics import Metric

PARTS: Final[tuple[type[Part], ...]] = (
    TablesPart,
    AuthPart,
    LocksPart,
    UpkeepPart,
    MonitoringPart,
    AdminPart,
    MessagesPart,
    StaticTopicPart,  # in front of the handlers of the parts before
    EscapePart,
    TransactionPart,  # before the parts that delay messages: a half message is delayed when it is committed
    DelayPart,
    TimerPart,
    PopPart,
    NameServersPart,
    ReplicaPart,  # behind them: it gives the broker its role
    PreOnlinePart,  # it decides when the role is given
    ActingPart,  # last: it changes that role
)


def all_metrics() -> tuple[Metric, ...]:
    """Every metric that a broker exports."""
    return tuple(metric for part in PARTS for metric in part.METRICS)
