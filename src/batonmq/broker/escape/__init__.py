"""Part: an acting master sends the messages that it has to store to another master."""
