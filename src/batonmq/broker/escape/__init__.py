"""Part: messages that an acting master has to write go to another master."""
