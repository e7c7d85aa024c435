"""``deliveryGuarantee=exactlyOnce``: tasks prepare half messages, and the driver decides and commits them."""
