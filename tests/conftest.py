"""What holds for all tests: a property test may take its time, or a busy machine would fail it."""

from hypothesis import settings

settings.register_profile("batonmq", deadline=None)
settings.load_profile("batonmq")
