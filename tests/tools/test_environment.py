"""Commands get the environment without its keys."""

from __future__ import annotations

import pytest

from bargein.tools.environment import scrubbed

SECRET = {
    "OPENAI_API_KEY": "x",
    "OPENAI_BASE_URL": "x",
    "ANTHROPIC_AUTH_TOKEN": "x",
    "AWS_SECRET_ACCESS_KEY": "x",
    "AWS_PROFILE": "x",
    "GITHUB_TOKEN": "x",
    "GH_PAT": "x",
    "github_token": "x",
    "myApiKey": "x",
    "PGPASSWORD": "x",
    "MYSQL_PWD": "x",
    "DB_PASS": "x",
    "SECRET": "x",
    "GOOGLE_APPLICATION_CREDENTIALS": "/x.json",
    "NPM_CONFIG__AUTH": "x",
    "SENTRY_DSN": "x",
    "BARGEIN_TOKEN": "x",
    "SLACK_WEBHOOK_URL": "x",
    "DATABASE_URL": "postgres://user:pass@host/db",
    "HTTPS_PROXY": "http://me:secret@proxy:3128",
    "INNOCENT": "sk-abcdefghijklmnopqrstuvwxyz",
    "SOMETHING": "ghp_abcdefghijklmnopqrstuvwxyz0123456789",
    "PIP_INDEX_URL": "https://a1b2c3d4e5f6a7b8c9d0e1f2@pypi.example.org/simple",
    "REDIS_URL": "redis://:pass@host",
    "SSHPASS": "x",
    "LDAP_BIND_PW": "x",
    "STRIPE": "sk_live_abcdefghijklmnop",
    "GIT_CONFIG_VALUE_0": "Authorization: Basic dXNlcjpwYXNz",
    "HEADER": "bearer abcdefghijkl",
    "PEM": "-----BEGIN RSA PRIVATE KEY-----\nx",
}
HARMLESS = {
    "PATH": "/usr/bin:/bin",
    "HOME": "/root",
    "PWD": "/work",
    "OLDPWD": "/",
    "LANG": "C.UTF-8",
    "TERM": "xterm",
    "SSH_AUTH_SOCK": "/run/x",
    "KEYBOARD": "de",
    "MONKEY": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "AUTHOR": "me",
    "SSL_CERT_FILE": "/x.pem",
    "COMPASS": "north",
    "HTTP_PROXY": "http://proxy:3128",
    "VIRTUAL_ENV": "/venv",
    "URL": "https://example.org/a:b@c",
    "REPOSITORY": "ssh://git@example.org/repository.git",
    "MOTTO": "basic things first",
    "EMPTY": "",
}


@pytest.mark.parametrize("name", SECRET)
def test_keys_are_left_out(name: str) -> None:
    assert scrubbed({name: SECRET[name], "PATH": "/bin"}) == {"PATH": "/bin"}


def test_the_rest_is_kept_as_it_is() -> None:
    assert scrubbed(HARMLESS) == HARMLESS


def test_what_is_allowed_by_name_is_kept() -> None:
    assert scrubbed(SECRET, ["GITHUB_TOKEN", "AWS_*"]).keys() == {
        "GITHUB_TOKEN",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_PROFILE",
    }
