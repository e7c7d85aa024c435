"""Part: transactional messages."""
