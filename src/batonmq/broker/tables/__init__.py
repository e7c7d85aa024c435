"""Part: topics, consumer groups, offsets, clients and locks; their files and their copies on slaves."""
