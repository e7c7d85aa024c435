"""getControllerConfig: the configuration controllers run with."""

from batonmq.admin.command import command, controller_option
from batonmq.admin.output import Output
from batonmq.admin.session import Admin
from batonmq.common.addresses import split_addresses
from batonmq.common.config import parse_properties
from batonmq.protocol.headers import controller as wire


@command("getControllerConfig")
@controller_option
async def main(admin: Admin, out: Output, controller: str) -> None:
    """Show every configuration key of controllers."""
    configs: dict[str, dict[str, str]] = {}
    for address in split_addresses(controller):
        answer = await admin.ask(address, wire.GetControllerConfig())
        configs[address] = parse_properties(bytes(answer.body).decode())
    keys = sorted({key for config in configs.values() for key in config})
    out.table(["key", *configs], [[key, *(c.get(key, "") for c in configs.values())] for key in keys])
