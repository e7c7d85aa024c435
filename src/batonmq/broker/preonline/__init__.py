"""Part: a broker that returns serves nobody before it has what its broker set did meanwhile (RIP-32)."""
