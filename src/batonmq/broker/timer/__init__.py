"""Part: messages with an exact time of delivery, and their recall."""
