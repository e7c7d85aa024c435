"""What a pop handed out, with the receipts by which it is acknowledged."""

from __future__ import annotations

from batonmq.net import Response
from batonmq.protocol.headers.broker.pop import PopMessageResponse
from batonmq.protocol.message.properties import PROPERTY_POP_CK
from batonmq.protocol.message.record import MessageExt, decode_records
from batonmq.protocol.pop import Receipt, parse_receipt, parse_start_offset_info


def with_receipts(answer: Response, broker_name: str) -> list[tuple[MessageExt, Receipt]]:
    """A message that came back has its receipt in a property; those of others follow from the answer."""
    header = answer.header
    assert isinstance(header, PopMessageResponse)
    starts = parse_start_offset_info(header.start_offset_info)
    found = []
    for record in decode_records(answer.body):
        known = record.properties.get(PROPERTY_POP_CK)
        receipt = (
            parse_receipt(known)
            if known
            else Receipt(
                starts["0", record.queue_id],
                header.pop_time,
                header.invisible_time,
                header.revive_qid,
                "0",
                broker_name,
                record.queue_id,
                record.queue_offset,
            )
        )
        found.append((record, receipt))
    return found
