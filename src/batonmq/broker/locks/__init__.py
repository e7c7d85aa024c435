"""Part: queue locks of orderly consumers, and the majority of the broker set that grants them."""
