"""The controller: a replicated state machine that elects masters, and its service."""
