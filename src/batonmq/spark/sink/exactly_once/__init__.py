"""``deliveryGuarantee=exactlyOnce``: tasks prepare half messages, the driver decides and ends them."""
