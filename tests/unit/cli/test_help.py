"""What a newcomer reads first: every command explains itself, and the files it shows can be used."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from batonmq.broker.config import BrokerConfig
from batonmq.cli.main import COMMANDS, main
from batonmq.common.config_loader import load
from batonmq.container.config import ContainerConfig
from batonmq.controller.config import ControllerConfig
from batonmq.ha.config import HAConfig
from batonmq.namesrv.config import NamesrvConfig
from batonmq.net.tls import TlsConfig
from batonmq.store.config import StoreConfig

CLASSES = {
    "namesrv": (NamesrvConfig, TlsConfig, ControllerConfig),
    "controller": (ControllerConfig, TlsConfig),
    "broker": (BrokerConfig, StoreConfig, HAConfig, TlsConfig),
    "container": (ContainerConfig, TlsConfig),
}


def said(*words: str) -> str:
    result = CliRunner().invoke(main, [*words])
    assert result.exit_code == 0, result.output
    return result.output


def test_the_first_page_names_every_command_in_whole_sentences() -> None:
    page = said("--help")
    for name, (_, sentence) in COMMANDS.items():
        assert f"  {name} " in page and sentence in page and sentence.endswith(".")
    assert CliRunner().invoke(main, []).output == page


@pytest.mark.parametrize(("typed", "meant"), [("brokr", "broker"), ("nameserv", "namesrv"), ("qqq", None)])
def test_a_wrong_command_names_the_nearest(typed: str, meant: str | None) -> None:
    result = CliRunner().invoke(main, [typed])
    assert result.exit_code == 2 and f"no command '{typed}'" in result.output
    assert (f"did you mean {meant}?" in result.output) is (meant is not None)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself_and_its_options(name: str) -> None:
    command = main.get_command(click.Context(main), name)  # type: ignore[attr-defined]
    page = said(name, "--help")
    assert page.splitlines()[2].strip().endswith((".", ",")) or page.splitlines()[2].strip()[0].isupper()
    assert page.count("...") == page.splitlines()[0].count("..."), "no sentence of the list is cut off"
    for parameter in command.params:
        assert isinstance(parameter, click.Option) and parameter.help, parameter.name


@pytest.mark.parametrize("program", ["controller", "broker", "container"])
def test_the_file_that_the_help_shows_can_be_used(
    program: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lines = [line.strip() for line in said(program, "--help").splitlines()]
    shown = [line for line in lines if "=" in line and " " not in line]
    assert len(shown) >= 4
    path = tmp_path / "some.conf"
    path.write_text("\n".join(shown))
    config = load(path, *CLASSES[program])[0]
    assert not caplog.records, "a key is unknown"
    if isinstance(config, ControllerConfig):
        assert config.topology()


@pytest.mark.parametrize("program", CLASSES)
def test_what_p_prints_is_a_file_that_says_the_same(
    program: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    text = said(program, "-p")
    assert "# " in text and re.search(r" \[-?\d+ (or more|to \d+)\]$", text, re.MULTILINE)
    path = tmp_path / "printed.conf"
    path.write_text(text)
    with caplog.at_level(logging.WARNING):
        assert said(program, "-c", str(path), "-p") == text
    assert not caplog.records
