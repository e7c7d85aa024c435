"""A command line of subcommands that names the nearest one when somebody mistypes."""

from __future__ import annotations

import click

from batonmq.common.config import did_you_mean


class SuggestingGroup(click.Group):
    """Subclasses list their commands in `list_commands`."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click's; an unknown command is a usage error with the nearest known one."""
        names = self.list_commands(ctx)
        if args and args[0] not in names and not args[0].startswith("-"):
            ctx.fail(f"no command {args[0]!r}{did_you_mean(args[0], names)}")
        return super().resolve_command(ctx, args)
