"""Part: the live members of the broker set, and the slave that acts as master while no master is alive."""
