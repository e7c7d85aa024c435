"""Producer, consumers and reader for asyncio."""
