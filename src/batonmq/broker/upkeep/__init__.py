"""Part: index building, flushing of consume queues, deletion of expired files."""
