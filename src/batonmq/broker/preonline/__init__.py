"""Part: a broker that returns serves only after it has copied the changes of its broker set (RIP-32)."""
