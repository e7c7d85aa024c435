"""Part: messages with a delay level."""
