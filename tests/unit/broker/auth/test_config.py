"""The keys of access control: what they mean, and the errors for values that are none."""

from __future__ import annotations

from pathlib import Path

import pytest

from batonmq.broker.auth_config import AuthConfig
from batonmq.common.config import ConfigError
from batonmq.common.config_loader import load
from batonmq.common.config_values import to_properties
from batonmq.protocol.signing import Credentials

INNER = '{"accessKey":"inner","secretKey":"hidden1"}'
FIRST = '{"username":"root","password":"hidden2"}'


def loaded(tmp_path: Path, text: str) -> AuthConfig:
    file = tmp_path / "broker.conf"
    file.write_text(text)
    (config,) = load(file, AuthConfig)
    return config


def test_a_file_of_rocketmq_s_documentation_is_understood(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    package = "org.apache.rocketmq.auth"
    config = loaded(
        tmp_path,
        "authenticationEnabled = true\n"
        f"authenticationProvider = {package}.authentication.provider.DefaultAuthenticationProvider\n"
        f"authenticationMetadataProvider = {package}.authentication.provider."
        "LocalAuthenticationMetadataProvider\n"
        f"initAuthenticationUser = {FIRST}\n"
        f"innerClientAuthenticationCredentials = {INNER}\n"
        "authorizationEnabled = true\n"
        f"authorizationProvider = {package}.authorization.provider.DefaultAuthorizationProvider\n"
        f"authorizationMetadataProvider = {package}.authorization.provider."
        "LocalAuthorizationMetadataProvider\n"
        "authenticationWhitelist=10, 11\n",
    )
    assert config.authentication_enabled and config.authorization_enabled
    assert config.inner_credentials == Credentials("inner", "hidden1")
    assert config.first_users == {"root": "hidden2", "inner": "hidden1"}
    assert config.unsigned_codes == {10, 11} and config.free_codes == frozenset()
    assert not caplog.records


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("authorizationEnabled=true", "needs authenticationEnabled=true"),
        ("authenticationEnabled=yes", "expected true or false"),
        ("initAuthenticationUser=root:hidden2", 'expected {"username":"…","password":"…"}'),
        ('initAuthenticationUser={"username":"root"}', "both not empty"),
        ('initAuthenticationUser={"username":"root","password":7}', "both not empty"),
        ('innerClientAuthenticationCredentials={"accessKey":"hidden2","secretKey":" "}', "both not empty"),
        ("authenticationWhitelist=SEND_MESSAGE", "expected request codes"),
        ("authenticationProvider=com.example.Ldap", "only RocketMQ's own class is known here"),
        ("migrateAuthFromV1Enabled=true", "plain_acl.yml"),
        ("aclEnable=true", "ACL 1.0"),
    ],
)
def test_a_value_that_is_none_is_one_line_without_secrets(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        loaded(tmp_path, f"{text}\n")
    line = str(caught.value)
    assert words in line and "broker.conf" in line and "\n" not in line
    assert "hidden2" not in line


def test_secrets_are_shown_nowhere() -> None:
    config = AuthConfig(init_authentication_user=FIRST, inner_client_authentication_credentials=INNER)
    assert "hidden" not in to_properties(config) + repr(config)
    assert "initAuthenticationUser=\n" in to_properties(config)
